"""What the domain refuses, and whether trying again can help."""


class FleetError(Exception):
    """`message` is shown to the person as it is, and says what to do."""

    status = 400
    code = "invalid"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class Invalid(FleetError):
    """The input cannot be meant; nothing was changed."""


class Unauthorized(FleetError):
    """What was shown as proof does not count. `code` says why."""

    status = 401
    code = "not_logged_in"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code or self.code


class Forbidden(FleetError):
    status = 403
    code = "forbidden"


class NotFound(FleetError):
    status = 404
    code = "not_found"


class Conflict(FleetError):
    """The state does not allow it now (someone else was faster, or it runs already). Look again, then decide."""

    status = 409
    code = "conflict"


class Unavailable(FleetError):
    """A host or the broker did not answer. Trying again can help."""

    status = 503
    code = "unavailable"
