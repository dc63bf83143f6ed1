from tests.sent import sent

__all__ = ["sent"]
