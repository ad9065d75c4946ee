"""The lab's own way to start the product: real processes on loopback, killable one by one, with rules that can be switched off.

No flag of a production process reaches these switches; only this package and the tests do.
"""
