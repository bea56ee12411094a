"""`hf:owner/repo/file.gguf`: fetching from the Hugging Face hub with huggingface_hub, into its own cache."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from ipyllama.errors import FetchError, ModelNotFound
from ipyllama.models.header import part_names
from ipyllama.models.progress import Progress, reporting

_NAME = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?/(?P<file>(?:[^/]+/)*[^/]+\.gguf)", re.I)


def is_hub_name(name: str) -> bool:
    return name.lower().startswith("hf:")


def fetch_hub_file(name: str, progress: Progress | None = None) -> Path:
    """The file that `hf:owner/repo/file.gguf` or `hf:owner/repo@revision/file.gguf` names; all parts of a split one.

    Taken from Hugging Face's cache without asking the network where it is there; else fetched, resuming what an
    earlier fetch began. Raises ModelNotFound for a malformed name, FetchError for everything that goes wrong.
    """
    match = _NAME.fullmatch(name)
    if match is None or ".." in match["file"].split("/"):
        raise ModelNotFound(f"{name!r} does not name a file on the hub. Write hf:owner/repo/file.gguf.")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise FetchError(
            "names that begin with hf: need huggingface_hub. Run `pip install huggingface_hub` and try again."
        )
    folder, _, file = match["file"].rpartition("/")
    paths = [
        _file(match["repo"], f"{folder}/{part}".lstrip("/"), match["revision"], progress) for part in part_names(file)
    ]
    return paths[0]


def _file(repo: str, file: str, revision: str | None, progress: Progress | None) -> Path:
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(repo, file, revision=revision, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        pass  # not here yet
    except errors.HFValidationError as error:
        raise ModelNotFound(f"{repo!r} is not a name that the hub can have ({error}).") from None
    where = f"{repo}/{file}"
    with reporting(progress) as report:
        try:
            return Path(hf_hub_download(repo, file, revision=revision, tqdm_class=_bar(report, f"fetching {file}")))
        except errors.GatedRepoError:
            reason = f"{repo} asks for consent. Accept its licence on the hub, run `hf auth login` and try again"
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            reason = "there is no such repository or revision, or it is private. Check the name, or run `hf auth login`"
        except errors.LocalEntryNotFoundError:
            reason = "the hub cannot be reached. Check the network and try again, or load a GGUF by its path"
        except errors.EntryNotFoundError:
            reason = "the repository has no such file. Check the spelling on its page"
        except OSError as error:  # covers the hub's own errors, httpx's and a full disk
            reason = f"{str(error).splitlines()[0][:200]}. Check the network and try again; what arrived is kept"
    raise FetchError(f"{where} could not be fetched: {reason}.")


def _bar(report: Progress, label: str) -> type[Any]:
    """A tqdm class that reports instead of drawing; the hub makes an instance for each file."""
    from tqdm.std import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)  # of the hub's own tqdm
            super().__init__(*args, **(options | {"disable": False}))

        def display(self, *args: Any, **options: Any) -> None:
            report(int(self.n), None if self.total is None else int(self.total), label)

    return Bar
