from pathlib import Path
from typing import Any
def keep_settings(out: Path, settings: dict[str, Any]) -> None: out.mkdir(parents=True, exist_ok=True)
def write(out: Path) -> str: return ""
