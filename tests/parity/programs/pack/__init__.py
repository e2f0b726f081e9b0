import sys

print("package", __name__, sys.argv[0] == "-m", __file__.rpartition("/")[2])
