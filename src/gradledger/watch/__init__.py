"""Audit a piece of running code: `watch`, and what its report is made of."""

from gradledger.watch._watch import End as End
from gradledger.watch._watch import Watch as Watch
from gradledger.watch._watch import render_text as render_text
from gradledger.watch._watch import watch as watch
