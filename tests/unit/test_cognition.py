"""A trace is encoded with the documented numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cognition import encode
from pipeline.records import Mood

UNIT = st.floats(-1, 1)


def test_neutral_turn_is_encoded_as_documented() -> None:
    """Worked value of the contract: S0 0.2875, stability 9 810 000 ms."""
    encoding = encode(None)
    assert encoding.strength == pytest.approx(0.2875, abs=1e-12)
    assert encoding.stability_ms == pytest.approx(9_810_000, abs=1e-6)
    assert (encoding.valence, encoding.confidence) == (0.0, 0.8)
    assert encode(Mood()) == encoding


def test_valence_mixes_sentiment_and_mood() -> None:
    """Seven tenths sentiment, three tenths mood."""
    assert encode(Mood(valence=-0.5), sentiment=0.4).valence == pytest.approx(0.13)


def test_extreme_arousal_keeps_three_tenths() -> None:
    """The arousal curve never falls below 0.3."""
    assert encode(Mood(arousal=1.0)).strength == pytest.approx(0.5 * 0.3 * 0.575)
    assert encode(Mood(arousal=-1.0)).strength == pytest.approx(0.5 * 0.3 * 0.575)


def test_flashbulb_doubles_strength_and_lasts_five_times_as_long() -> None:
    """Intensity 0.9 > 0.8; worked by hand from the formula."""
    encoding = encode(Mood(valence=1.0, arousal=0.8), sentiment=1.0)
    strength = 0.5 * 0.36 * (1 + 0.5 * 0.9 * 0.6) * 0.575 * (1 + 0.18) * 2
    assert encoding.strength == pytest.approx(strength)
    assert encoding.stability_ms == pytest.approx(3_600_000 * (1 + 6 * strength) * 5)


def test_intensity_of_four_fifths_is_no_flashbulb_yet() -> None:
    """The bound is strict: |0.8| * 1.0 is not above 0.8."""
    at_bound = encode(Mood(valence=0.0, arousal=1.0), sentiment=0.8 / 0.7)
    assert at_bound.strength == pytest.approx(0.5 * 0.3 * (1 + 0.5 * 0.8 * 0.6) * 0.575)


def test_agreement_of_mood_and_sentiment_strengthens_but_contradiction_does_not_weaken() -> None:
    """The congruence factor is 1 + 0.18 * max(0, ...)."""
    agreeing, contradicting = encode(Mood(valence=0.5), sentiment=0.5), encode(Mood(valence=0.5), sentiment=-0.5)
    assert agreeing.strength == pytest.approx(0.2875 * (1 + 0.3 * 0.25) * (1 + 0.18 * 0.25))
    assert contradicting.strength == pytest.approx(0.2875 * (1 + 0.3 * 0.1))


@given(UNIT, UNIT, UNIT, UNIT, st.floats(0, 1))
def test_fields_stay_in_their_ranges(v: float, a: float, d: float, sentiment: float, attention: float) -> None:
    """The score divides by stability and relies on a strength of at most 1."""
    encoding = encode(Mood(v, a, d), sentiment=sentiment, attention=attention)
    assert 0 <= encoding.strength <= 1
    assert encoding.stability_ms >= 3_600_000
    assert -1 <= encoding.valence <= 1
