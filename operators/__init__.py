"""Code of nodes: operators combine partitions, and sources produce partitions."""

from __future__ import annotations

from thalweg.operators.array_join import ArrayJoin
from thalweg.operators.composition import Composite, as_rule
from thalweg.operators.folder import ImageFolderSource
from thalweg.operators.interface import Operator, Source, Value
from thalweg.operators.pictures import contact_sheet, write_image
from thalweg.operators.reference import digest, reference_run, sequence_digest
from thalweg.operators.remembering import BestOfLast, Running
from thalweg.operators.scenes import SceneSource, ground_truth

__all__ = [
    "ArrayJoin",
    "BestOfLast",
    "Composite",
    "ImageFolderSource",
    "Operator",
    "Running",
    "SceneSource",
    "Source",
    "Value",
    "as_rule",
    "contact_sheet",
    "digest",
    "ground_truth",
    "reference_run",
    "sequence_digest",
    "write_image",
]
