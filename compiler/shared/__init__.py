"""What the page and Python must decide alike, written once in TypeScript (`web/src/shared`): `shared.js` is its build,
and `script.py` evaluates it in QuickJS.
"""
