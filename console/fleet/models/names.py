"""What names may be made of: they stand in addresses, in host names and on command lines."""

from django.core.validators import RegexValidator

name_validator = RegexValidator(
    r"^(?!new$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
    "Use lower-case letters, digits and hyphens, at most 63, starting and ending with a letter or digit; not “new”, "
    "which the pages' addresses use.",
)
no_flag_validator = RegexValidator(r"^[^-]", "It cannot begin with a hyphen: the engine would read it as an option.")
