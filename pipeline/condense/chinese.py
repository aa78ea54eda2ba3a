"""How people tell of themselves in Chinese: the basics, one pattern a line."""

# ruff: noqa: E501 - a pattern stands on one line
from __future__ import annotations

import re
from typing import Final

from pipeline.condense.english import Pattern

_I: Final = r"我(?:们)?(?:现在|目前|已经|刚刚|刚|最近|一直|也|就|还)*"
_PHRASE: Final = r"(?P<v>[^\s，。；：！？、,.;:!?（）()的了吗呢]{1,20})"
_LIST: Final = r"(?P<v>[^\s，。；：！？,.;:!?（）()了吗呢]{1,30})"
_RELATIVE: Final = (
    "妻子|老婆|丈夫|老公|儿子|女儿|哥哥|弟弟|姐姐|妹妹|妈妈|母亲|爸爸|父亲|爷爷|奶奶|女朋友|男朋友|狗|猫"
)


def _pattern(key: str, regex: str, confidence: float, *, is_list: bool = False) -> Pattern:
    return Pattern(key, ("我",), re.compile(regex), confidence, is_list)


PATTERNS: Final = (
    _pattern("residence", rf"{_I}(?:住在|居住在|定居在|定居|搬到了|搬到|搬去了|搬家到){_PHRASE}", 0.9),
    _pattern("home town", rf"{_I}(?:来自|出生在|是在(?=.{{1,8}}长大)){_PHRASE}", 0.8),
    _pattern("employer", rf"{_I}在(?P<v>[^\s，。；！？,.;!?]{{1,20}}?)(?:工作|上班)", 0.85),
    _pattern("occupation", rf"{_I}是(?:一名|一位|一个|个|名)(?P<v>[^\s，。；！？,.;!?的]{{1,10}})", 0.8),
    _pattern("name", rf"{_I}(?:叫|名叫|的名字是|的名字叫){_PHRASE}", 0.9),
    _pattern("age", rf"(?:{_I}|今年)(?:今年)?(?P<v>\d{{1,3}})岁", 0.85),
    _pattern("birthday", rf"{_I}的生日(?:是|在)(?P<v>[\d一二三四五六七八九十年月日号]{{2,12}})", 0.9),
    _pattern("allergy", rf"{_I}对{_LIST}过敏", 0.95, is_list=True),
    _pattern("diet", rf"{_I}(?:只)?(?:是|吃)(?P<v>素食者|素食主义者|素食|素)", 0.85),
    _pattern("does not eat", rf"{_I}(?:不吃|不能吃|不喝){_LIST}", 0.85, is_list=True),
    _pattern("language", rf"{_I}(?:会说|会讲|能说){_LIST}", 0.9, is_list=True),
    _pattern("dislikes", rf"{_I}(?:很|非常|最|特别)?(?:不喜欢|讨厌|不爱){_PHRASE}", 0.75),
    _pattern("likes", rf"{_I}(?:很|非常|最|特别|超)?(?:喜欢|爱|热爱){_PHRASE}", 0.7),
    _pattern("plan", rf"{_I}(?P<v>(?:打算|计划|准备|要)?(?:明天|后天|下周|下个月|下星期.|明年|\d+月(?:\d+[日号])?)[^，。；！？,.;!?]{{2,24}})", 0.7),
    _pattern("", rf"我(?:的|家)?(?P<k>{_RELATIVE})(?:的名字)?(?:叫做|叫|是){_PHRASE}", 0.8),
    _pattern("", rf"我的(?P<k>[^\s，。；！？,.;!?是叫的]{{1,8}})是{_PHRASE}", 0.55),
)  # fmt: skip
NEGATED: Final = re.compile(r"(?:不|没|没有|并非|从未)[^，。；]{0,4}$")
