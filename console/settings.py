"""Settings. Every default runs from a fresh clone; the README lists what the environment can change."""

from pathlib import Path
from typing import Any

from csp.constants import NONCE, NONE, SELF

from console import env, postgres_address
from console.beat import every
from console.kept import kept

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = env.folder("DATA_DIR", BASE_DIR / "data")
# It holds keys, sessions and the broker's password: nobody else's business on this machine.
try:
    DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
except OSError as error:
    raise env.BadSetting(f"DATA_DIR={str(DATA_DIR)!r}: no folder can be made there ({error.strerror})") from error
NODE_MODULES = env.folder("NODE_MODULES", BASE_DIR / "node_modules")


def kept_secret(name: str) -> str:
    """The value of environment variable `name`, else one made once and kept in DATA_DIR with mode 600."""
    return env.secret(name) or kept(DATA_DIR / name.lower())


def database(url: str) -> dict[str, Any]:
    """The address of a PostgreSQL database (console/postgres_address.py), or an empty string for SQLite in DATA_DIR."""
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": DATA_DIR / "switchyard.sqlite3",
            # A file as well: threads share it with the locks of the real one, which memory would not show.
            "TEST": {"NAME": DATA_DIR / "test.sqlite3"},
            "OPTIONS": {
                # IMMEDIATE: a transaction that will write waits its turn instead of failing half-way.
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    return postgres_address.connection(url)


SECRET_KEY = kept_secret("SECRET_KEY")
DEBUG = env.flag("DEBUG", False)
PUBLIC_URL = env.text("PUBLIC_URL")
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS") or ["127.0.0.1", "localhost", "[::1]", ".localhost"]
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL] if PUBLIC_URL else []
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PUBLIC_URL.startswith("https://")
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

INSTALLED_APPS = [
    "console.accounts",
    "console.fleet",
    "console.launch",
    "console.gateway",
    "console.live",
    "console.traffic",
    "console.api",
    "console.demo",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_htmx",
    "ninja",
    "axes",
    "csp",
]

MIDDLEWARE = [
    "console.host_names.RefusedHosts",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
    "console.outages.DatabaseOutages",
    "console.methods.WrongMethod",
]

ROOT_URLCONF = "console.urls"
ASGI_APPLICATION = "console.asgi.application"
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "loaders": [
                (
                    "django.template.loaders.cached.Loader",
                    [
                        "django.template.loaders.filesystem.Loader",
                        "django.template.loaders.app_directories.Loader",
                    ],
                )
            ]
            if not DEBUG
            else [
                "django.template.loaders.filesystem.Loader",
                "django.template.loaders.app_directories.Loader",
            ],
        },
    }
]

DATABASES = {"default": database(env.secret("DATABASE_URL"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
# Five wrong passwords for one name from one address: wait a quarter of an hour.
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = 0.25
AXES_LOCKOUT_TEMPLATE = "429.html"
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False

STATIC_URL = "/static/"
STATICFILES_DIRS = [
    BASE_DIR / "static",
    ("vendor/tabler", NODE_MODULES / "@tabler/core/dist"),
    ("vendor/uplot", NODE_MODULES / "uplot/dist"),
    ("vendor/sortable", NODE_MODULES / "sortablejs/modular"),
]
STATIC_ROOT = DATA_DIR / "static"
# Empty until someone collects; the file server warns at every start when the folder is missing.
STATIC_ROOT.mkdir(parents=True, exist_ok=True)
# Files are served from where they lie, so that a fresh clone needs no collecting step.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF, NONCE],
        # Charts and progress bars set sizes by style attribute.
        "style-src": [SELF, "'unsafe-inline'"],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
    }
}

# Broker, live streams and router loads: one Redis or Valkey. The supervisors (`manage.py demo`, `manage.py up`) start
# an embedded Valkey when REDIS_URL is not given, and pass its address on to everything that they start.
REDIS_URL = env.secret("REDIS_URL") or "redis://127.0.0.1:6379/0"
REDIS_PREFIX = env.text("REDIS_PREFIX", "switchyard")
BROKER_PUBLIC_URL = env.text("BROKER_PUBLIC_URL")
"""Where hosts reach the broker, when that is not what REDIS_URL says: redis://broker.example.org:6379/0"""
VALKEY_BIND = env.text("VALKEY_BIND")
"""An address besides 127.0.0.1 on which the embedded Valkey listens for other machines; empty: none."""

CELERY_BROKER_URL = REDIS_URL
CELERY_RESULT_BACKEND = REDIS_URL
CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = 60
CELERY_TASK_DEFAULT_QUEUE = "console"
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# However long the broker was away, the worker finds it again.
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_WORKER_CONSUMER = "console.reconnecting:ReconnectingConsumer"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": env.integer("BROKER_VISIBILITY_TIMEOUT_S", 600),
    "global_keyprefix": f"{REDIS_PREFIX}:",
}
CELERY_RESULT_BACKEND_TRANSPORT_OPTIONS = {"global_keyprefix": f"{REDIS_PREFIX}:result:"}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"

# Control plane tempo, seconds.
AGENT_REPORT_EVERY_S = env.number("AGENT_REPORT_EVERY_S", 2.0)
HOST_UNREACHABLE_AFTER_S = env.number("HOST_UNREACHABLE_AFTER_S", 15.0)
TICK_EVERY_S = env.number("TICK_EVERY_S", 1.0)

CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"  # nothing to remember between runs
CELERY_BEAT_MAX_LOOP_INTERVAL = min(5.0, TICK_EVERY_S)
CELERY_BEAT_SCHEDULE = {
    # A late one is pointless: the next has been sent already.
    "see what is due": {
        "task": "console.tick",
        "schedule": every(TICK_EVERY_S),
        "options": {"expires": 5 * TICK_EVERY_S},
    },
    "store finished requests": {"task": "traffic.ingest", "schedule": every(1.0), "options": {"expires": 5}},
    "forget old requests": {"task": "traffic.prune", "schedule": every(3600.0), "options": {"expires": 3600}},
}
CELERY_TASK_ROUTES = {
    "console.verify": {"queue": "checks"},
    "console.verify_pair": {"queue": "checks"},
    "console.look_at_adopted": {"queue": "checks"},
}

RECORDS_KEPT_DAYS = env.integer("RECORDS_KEPT_DAYS", 14)
LONG_PROMPT_TOKENS = env.integer("LONG_PROMPT_TOKENS", 2048)
"""Prompts from this length on are marked on the charts beside the gaps they may have caused."""
KEEP_ALIVE_S = env.integer("KEEP_ALIVE_S", 75)
"""How long an idle connection of a client stays open: longer than clients, and proxies before us, keep theirs."""
ROUTER_MAX_BODY_BYTES = env.integer("ROUTER_MAX_BODY_MIB", 64) * 2**20
PAGE_SLOTS = env.integer("PAGE_SLOTS", 8)
"""Page and API requests that run at once, each with a thread and a database connection. More wait their turn."""
METRICS_OPEN = env.flag("METRICS_OPEN", False)
"""/metrics without a token, for scrapers on a closed network."""

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
# A line for each of three tasks a second would bury what matters.
QUIET_LOGGERS = ("axes", "httpx", "celery.app.trace", "celery.worker.strategy", "celery.beat")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": env.choice("LOG_LEVEL", "INFO", LOG_LEVELS)},
    "loggers": {name: {"level": "WARNING"} for name in QUIET_LOGGERS},
}
