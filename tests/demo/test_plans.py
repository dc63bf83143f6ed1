"""What the demo deploys when it runs real engines."""

from pathlib import Path

import pytest

from console.demo import plans


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the real engine is installed."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").touch()
    monkeypatch.setenv("REAL_ENGINE_HOME", str(tmp_path))
    monkeypatch.delenv("ENGINE_MODEL", raising=False)
    return tmp_path


def test_real_engines_serve_the_tiny_model_of_text(home: Path) -> None:
    assert plans.vllm().deployment["model"] == str(home / "tiny-model")


def test_real_engines_serve_another_model_when_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_MODEL", "/models/other")
    assert plans.vllm().deployment["model"] == "/models/other"
