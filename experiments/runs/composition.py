"""Workload ``composition``: images of sites, combined by pixel selection in a tree of operators."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from thalweg.experiments.run_config import CLIENT, MIXED, RunConfig, combining_names, host_names
from thalweg.experiments.runs.base_workload import Workload
from thalweg.experiments.runs.strategies import changes_shapes, reshapes_at_random
from thalweg.middleware.dataflow import TREES, Code, Dataflow
from thalweg.middleware.errors import OperatorError, UsageError, nearest
from thalweg.middleware.loading import DEFAULT_ALLOW, OperatorCode, load_code, reorderable
from thalweg.operators import ImageFolderSource, contact_sheet

SHOWN_SITES, SHOWN_IMAGES = 4, 3  # on a sheet
STATEFUL = ("running", "thalweg.operators.array_join:ArrayJoin", "best-of-last")  # for MIXED, in turn, producers first


class Composition(Workload):
    """Workload of a tree whose sources give images, either generated or from the user's folder."""

    sized = True

    def dataflow(self) -> Dataflow:
        """Return a dataflow with one source per server, and operators.

        Raise UsageError for an unknown tree or operator.
        """
        config = self.config
        servers = host_names(config.servers)
        builder = TREES.get(config.tree)
        if builder is None:
            raise UsageError(f"unknown tree {config.tree!r}; known are {', '.join(TREES)}")
        pixel_bytes = (2 if config.dtype == "uint16" else 1) * config.bands
        params: dict[str, Any] = {"rule": config.rule, "bytes_per_pixel": pixel_bytes}
        if config.operator == "composite" and config.rule in ("max", "min") and changes_shapes(config):
            params["fit"] = "nested"  # for all placements of the run, so that all give the same bytes
        if config.pixel_s is not None:
            params["seconds_per_pixel"] = config.pixel_s
        if config.folder is not None:
            sources = _folder_sources(Path(config.folder), servers, skip_corrupt=config.skip_corrupt)
        else:
            sources = {
                host: Code(
                    "scenes",
                    {
                        "site": site,
                        "sites": config.servers,
                        "seed": config.seed,
                        "length": config.images,
                        "mean_bytes": float(config.image_bytes),
                        "relative_deviation": config.image_deviation,
                        "dtype": config.dtype,
                        "bands": config.bands,
                    },
                )
                for site, host in enumerate(servers)
            }
        names = STATEFUL if config.operator == MIXED else (config.operator,)
        codes = [Code(name, params) for name in names]
        for code in codes:
            _check_operator(code, config)
        if reshapes_at_random(config) and not reorderable(codes, (*DEFAULT_ALLOW, *config.allow)).codes:
            why = f"--operator {config.operator} with --rule {config.rule} needs a fixed order"
            raise UsageError(
                f"random-reshapes changes the order of combination, and {why}; use composite with max or min"
            )
        tree = builder(sources, codes[0], CLIENT)
        turn = itertools.cycle(codes)
        nodes = (msgspec.structs.replace(n, code=next(turn)) if n.kind == "operator" else n for n in tree.nodes)
        return Dataflow(tuple(nodes)).validate()

    def available(self) -> tuple[int, list[str]]:
        """Return the number of images that every site can deliver, and notes.

        The user's images are read once. UsageError names a corrupt image.
        """
        config = self.config
        if config.folder is None:
            return config.images, []
        dataflow = self.dataflow()
        counts: dict[str, int] = {}
        for name in dataflow.sources:
            code = dataflow.by_name[name].code
            assert code is not None
            try:
                source = ImageFolderSource(**code.params)
                count = 0
                while count < config.images and source.produce(count) is not None:
                    count += 1
            except OperatorError as error:
                raise UsageError(str(error)) from None
            counts[Path(code.params["folder"]).name] = count
        least = min(counts, key=counts.__getitem__)
        if counts[least] == 0:
            raise UsageError(f"{config.folder}: a site has no image that can be read")
        most = max(counts.values())
        left_out = (
            f"{least!r} has {counts[least]} images and others up to {most}: images beyond {counts[least]} are left out"
        )
        return counts[least], [left_out] if counts[least] < most else []

    def data_roots(self, dataflow: Dataflow) -> list[Path]:
        """Return the folders of the user's images, and the folders to which links there lead."""
        codes = [dataflow.by_name[name].code for name in dataflow.sources]
        folders = [Path(code.params["folder"]) for code in codes if code is not None and code.use == "image_folder"]
        links = [path for folder in folders for path in folder.iterdir() if path.is_symlink() and path.is_file()]
        return [*folders, *sorted({link.resolve().parent for link in links})]

    def write_sheet(self, folder: Path, images: int) -> Path | None:
        """Write ``images/sheet.png`` in the run folder: some sites' images and the composite, for the first few
        images.
        """
        config, dataflow = self.config, self.dataflow()
        if not config.pictures:
            return None
        sources = []
        for name in dataflow.sources:
            code = dataflow.by_name[name].code
            assert code is not None
            sources.append(load_code(code))
        composite = load_code(Code("composite", {"rule": config.rule}), (*DEFAULT_ALLOW, *config.allow))
        rows = []
        for index in range(min(SHOWN_IMAGES, images)):
            seen = [np.asarray(source.produce(index)) for source in sources]
            rows.append([*seen[:SHOWN_SITES], np.asarray(composite.combine(seen, index))])
        labels = [f"server h{site + 1}" for site in range(min(SHOWN_SITES, len(sources)))]
        path = folder / "images" / "sheet.png"
        path.parent.mkdir(exist_ok=True)
        contact_sheet(rows, [*labels, f"composite of {len(sources)}"], path)
        return path


def _check_operator(code: Code, config: RunConfig) -> None:
    """Raise UsageError if an operator cannot be made here, or the code is not an operator."""
    try:
        loaded = load_code(code, (*DEFAULT_ALLOW, *config.allow))
    except OperatorError as error:
        known = combining_names()
        if ":" not in code.use and code.use not in known and error.__cause__ is None:  # None: it can be imported
            advice = nearest(code.use, known)
            raise UsageError(f"unknown --operator {code.use!r}; {advice}, or package.module:Class") from None
        raise UsageError(str(error)) from None
    if not isinstance(loaded, OperatorCode):
        raise UsageError(f"--operator {code.use} is a source; an operator combines, such as composite")


def _folder_sources(folder: Path, servers: list[str], *, skip_corrupt: bool) -> dict[str, Code]:
    """Return the code of one source per server: one subfolder each, in the order of names."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; it must hold one subfolder of images for every server")
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(subfolders) < len(servers):
        raise UsageError(
            f"{folder} has {len(subfolders)} subfolders; {len(servers)} servers need one each (or use --servers)"
        )
    codes: dict[str, Code] = {}
    for host, path in zip(servers, subfolders, strict=False):
        params = {"folder": str(path.resolve()), "skip_corrupt": skip_corrupt}
        codes[host] = Code("image_folder", params)
    return codes
