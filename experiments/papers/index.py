"""Index of the studies' figures. Figures are found and listed without an import of every study."""

from __future__ import annotations

from collections.abc import Mapping

RANGANATHAN, PIETZUCH = "Ranganathan et al. (1998)", "Pietzuch et al. (2006)"
CARDELLINI, BENOIT = "Cardellini et al. (2016)", "Benoit et al. (2008)"
ASADUZZAMAN = "Asaduzzaman and Maheswaran (2010)"

# By study (a folder below this folder): the study's figures, each with its paper.
FIGURES: Mapping[str, Mapping[str, str]] = {
    "ranganathan1998": {
        **dict.fromkeys(("6", "7", "8", "9", "10"), RANGANATHAN),
        "sensitivity": "the influence of the parameters of generated traces",
        "ablation": "the share of each part of thalweg",
        "stripes": "several trees at once",
    },
    "pietzuch2006": dict.fromkeys(("sbon-table1", "sbon-8", "sbon-9", "sbon-operators"), PIETZUCH),
    "pietzuch2006.coordinates": {"sbon-5": PIETZUCH},
    "pietzuch2006.migration": {"sbon-12": PIETZUCH},
    "pietzuch2006.reuse": {"sbon-13": PIETZUCH},
    "pietzuch2006.choosing": {"sbon-14": PIETZUCH},
    "cardellini2016": dict.fromkeys(("odp-4", "odp-5", "odp-6", "odp-7"), CARDELLINI),
    "cardellini2016.solving": dict.fromkeys(("odp-9", "odp-10"), CARDELLINI),
    "benoit2008": {
        **dict.fromkeys(("benoit-2", "benoit-3", "benoit-4", "benoit-5", "benoit-table2"), BENOIT),
        **dict.fromkeys(("benoit-6", "benoit-7", "benoit-8", "benoit-9"), BENOIT),
    },
    "asaduzzaman2010": dict.fromkeys(("bimodal-8", "bimodal-9"), ASADUZZAMAN),
    "asaduzzaman2010.heuristics": {"bimodal-7": ASADUZZAMAN},
    "asaduzzaman2010.hops": {"bimodal-hops": ASADUZZAMAN},
}


POOLS: Mapping[str, str] = {
    "paper": "drawn as in the paper of the figure",
    "regions": "the same, with links by region",
    "real": "measured traces, scaled to the paper's mean",
    "gt-itm": "topologies, for sbon-table1, sbon-8, sbon-9 and sbon-operators",
    **dict.fromkeys(("operators", "left-deep", "n-ary"), "trees, for the figures of Benoit et al."),
}


def figure_names() -> dict[str, str]:
    """Return the paper of every figure by the figure's name. Figures of our own have a subject in place of a paper."""
    return {name: meaning for figures in FIGURES.values() for name, meaning in figures.items()}


def pool_names() -> Mapping[str, str]:
    """Return the named pools with descriptions."""
    return POOLS
