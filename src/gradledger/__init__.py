"""Every gradient accounted for.

Importing this package loads neither torch nor numpy: a saved ledger can be judged on a machine that has neither.
Start at :func:`gradledger.watch.watch` in code, or at ``gradledger audit script.py`` on the command line.
"""

from gradledger._version import __version__ as __version__
