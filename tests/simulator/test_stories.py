"""Stories in text, each a promise that its own first lines tell."""

from __future__ import annotations

import pytest

from tests.simulator.story import STORIES, Story

FILES = sorted(STORIES.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_story_comes_out_as_it_is_told(path):
    story = Story(path.read_text(encoding="utf-8"))
    try:
        story.play()
    except Exception as error:
        tail = "\n".join(story.world.diary.lines()[-40:])
        pytest.fail(f"{path.stem}: {type(error).__name__}: {error}\n{tail}", pytrace=False)


def test_a_story_that_expects_the_wrong_thing_fails():
    with pytest.raises(AssertionError):
        Story("5 ask A s0\n6 wait\nexpect A fails 502\n").play()


def test_a_story_with_an_unknown_word_fails():
    with pytest.raises(AssertionError):
        Story("5 frobnicate\n").play()
