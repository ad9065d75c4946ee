"""What one answer shows: the expected facts, or a sentence that says the history cannot be seen. Pure.

The sentences are matched conservatively, in Chinese and English: an answer that quotes one to correct it may be flagged
too, so a flagged answer is for a person to look at.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_EARLIER = r"(?:previous|prior|earlier|past|preceding|above)"
_TALK = r"(?:conversations?|messages?|chats?|context|history|interactions?|discussions?|exchanges?)"
_CANNOT = r"(?:do not|don't|cannot|can't|could not|couldn't|am unable to|am not able to|have no|had no|has no|lack)"
_ENGLISH = (
    rf"{_CANNOT}\b[^.!?\n]{{0,60}}\b(?:{_EARLIER}|our)\b[^.!?\n]{{0,20}}\b{_TALK}",
    rf"\bno\b[^.!?\n]{{0,20}}\b{_EARLIER}\b[^.!?\n]{{0,20}}\b{_TALK}",
    rf"\b{_CANNOT}\b[^.!?\n]{{0,40}}\b(?:memory|record|recollection)\b",
    rf"\b{_CANNOT}\b[^.!?\n]{{0,40}}\b(?:see|access|view|recall|remember)\b[^.!?\n]{{0,40}}\b(?:{_TALK}|you (?:said|told|mentioned|asked))",
    r"\b(?:start|beginning) of (?:our|this|the) conversation\b",
    r"\b(?:this|that|it) (?:is|appears to be|seems to be|looks like)\b[^.!?\n]{0,20}\bfirst (?:message|question|interaction)\b",
    r"\beach (?:conversation|session|chat) (?:starts|begins)\b",
    r"\byou (?:have not|haven't|did not|didn't|never)\b[^.!?\n]{0,30}\b(?:told|tell|mention|mentioned|give|given|provided|shared|said)\b",
)
_CHINESE = (
    r"(?:看不到|看不见|无法|不能|没有|没办法|并未|未能|不记得|记不得)[^。!?\n]{0,20}(?:之前|先前|以前|前面|此前|上文|上面|历史|过往|早先)[^。!?\n]{0,10}(?:对话|消息|记录|内容|聊天|信息|上下文|提问|问题)?",
    r"(?:看不到|看不见|无法(?:看到|访问|获取|查看|记住|回忆))[^。!?\n]{0,20}(?:对话|消息|记录|聊天|上下文|历史)",
    r"没有(?:任何)?(?:对话|聊天|历史|上下文)(?:的)?(?:记录|记忆|历史|信息)?",
    r"(?:这|那)(?:是|似乎是|好像是)[^。!?\n]{0,12}第一(?:条|次|句|个)(?:消息|对话|话|问题|提问)",
    r"(?:对话|聊天|会话)(?:才|刚|刚刚)(?:刚)?开始",
    r"没有(?:告诉|提到|提供|说过)(?:过)?我?",
)
_LOST = tuple(re.compile(pattern) for pattern in (*_ENGLISH, *_CHINESE))


@dataclass(frozen=True, slots=True)
class Judgement:
    """`missing_facts`: in the first spelling. `lost_sentence`: the words that say the history is not seen, or None."""

    missing_facts: tuple[str, ...]
    lost_sentence: str | None

    @property
    def recalled(self) -> bool:
        return not self.missing_facts and self.lost_sentence is None


def judge(answer: str, facts: Sequence[Sequence[str]]) -> Judgement:
    """Looks for each fact, in any of its spellings, and for a sentence of lost history."""
    plain = _plain(answer)
    missing = tuple(spellings[0] for spellings in facts if not any(_plain(each) in plain for each in spellings))
    return Judgement(missing, lost_history_sentence(answer))


def lost_history_sentence(answer: str) -> str | None:
    """The first words of the answer that say the history cannot be seen."""
    plain = _plain(answer)
    found = next((match for pattern in _LOST if (match := pattern.search(plain)) is not None), None)
    return found.group() if found is not None else None


def _plain(text: str) -> str:
    """Compatibility forms folded, lower case, one kind of apostrophe; spacing of line ends kept as sentence ends."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return folded.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").replace("*", "").replace("`", "")
