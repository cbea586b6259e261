"""The one exception a user's mistake may raise.

The command line turns a `UserError` into its message and exit code 2; anything else is a bug of ours and keeps
its traceback.
"""


class UserError(Exception):
    """A mistake the user can mend: the message says what, where (file:line when known) and how to fix it."""
