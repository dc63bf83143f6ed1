"""Between what a deployment's own limits for the router must lie. Without one, the router's default holds."""

from dataclasses import dataclass

from django.core.validators import MaxValueValidator, MinValueValidator


@dataclass(frozen=True, slots=True)
class Span:
    least: float
    most: float

    def validators(self) -> tuple[MinValueValidator, MaxValueValidator]:
        told = f"Give a number from {self.least:g} to {self.most:g}, or leave it empty for the router's default."
        return MinValueValidator(self.least, told), MaxValueValidator(self.most, told)


DAY_S = 86_400
CONNECT_S = Span(0.1, 60)
FIRST_BYTE_S = IDLE_S = TOTAL_S = Span(0.1, DAY_S)
COMMENT_EVERY_S = Span(1, 3600)
CONNECTIONS = Span(1, 65_535)
"""An address has no more ports to connect from."""
