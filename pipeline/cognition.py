"""How strongly a turn is remembered at first, from the mood in which it was said.

A trace is encoded once, when it is committed; scoring it at query time is the reader's.

Source: the numbers and names are those of the AgentOS cognitive memory documentation, with no personality traits set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipeline.records import NEUTRAL, Mood

NEUTRAL_ATTENTION: Final = 0.575
"""Attention of a turn in which no feature was detected."""
_BASE_STRENGTH: Final = 0.5
_EMOTION_WEIGHT: Final = 0.6
_LEAST_AROUSAL_FACTOR: Final = 0.3
_FLASHBULB_INTENSITY: Final = 0.8
_FLASHBULB_STRENGTH: Final = 2.0
_FLASHBULB_STABILITY: Final = 5.0
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Encoding:
    """A trace's cognitive fields at the moment it is committed; ``valence`` is in [-1, 1], the rest is positive."""

    strength: float
    stability_ms: float
    valence: float
    confidence: float = 0.8


def encode(mood: Mood | None, *, sentiment: float = 0.0, attention: float = NEUTRAL_ATTENTION) -> Encoding:
    """Encode a turn said in a mood (neutral when None).

    Args:
        mood: the publisher's mood at that turn.
        sentiment: how pleasant the text is, in [-1, 1]; 0 when nothing was detected.
        attention: how much attention the text draws, in [0, 1].
    """
    felt = NEUTRAL if mood is None else mood
    arousal = (felt.arousal + 1) / 2
    valence = 0.7 * sentiment + 0.3 * felt.valence
    intensity = abs(valence) * arousal
    is_flashbulb = intensity > _FLASHBULB_INTENSITY
    strength = min(
        1.0,
        _BASE_STRENGTH
        * max(_LEAST_AROUSAL_FACTOR, 1 - 4 * (arousal - 0.5) ** 2)  # Yerkes-Dodson: middling arousal encodes best
        * (1 + 0.5 * intensity * _EMOTION_WEIGHT)
        * attention
        * (1 + 0.3 * _EMOTION_WEIGHT * max(0.0, felt.valence * sentiment))
        * (_FLASHBULB_STRENGTH if is_flashbulb else 1.0),
    )
    stability_ms = _HOUR_MS * (1 + 6 * strength) * (_FLASHBULB_STABILITY if is_flashbulb else 1.0)
    return Encoding(strength, stability_ms, valence)
