from gzip import BadGzipFile as BadGzipFile
from gzip import GzipFile as GzipFile
from gzip import compress as compress
from gzip import decompress as decompress
from os import PathLike
from typing import IO, Any

def open(
    filename: str | bytes | PathLike[str] | IO[bytes],
    mode: str = "rb",
    compresslevel: int = 9,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *,
    threads: int = 0,
    index: str | PathLike[str] | None = None,
) -> Any: ...
