"""What finds mistakes of the compiler: an interpreter and a comparison of modules, a bisection of passes, a reducer.

The library does not need it; the command line and the tests do.
"""
