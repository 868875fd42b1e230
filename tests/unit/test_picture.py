"""Pictures of terminals: each character is at its column, in its colour."""

from __future__ import annotations

from support.picture import PLAIN, drawing


def test_colours_and_columns() -> None:
    made = drawing(["a \x1b[1;32mb<\x1b[0m c", ""])
    assert 'x="8.4" y="18"' in made and f'fill="{PLAIN}"' in made
    assert '<text x="25.2" y="18" fill="#2da44e" font-weight="bold" xml:space="preserve">b&lt;</text>' in made
    assert 'x="42.0"' in made and made.count("<text") == 3
