"""How people tell of themselves in Chinese: the basics, one pattern a line."""

# ruff: noqa: E501 - a pattern stands on one line
from __future__ import annotations

import re
from typing import Final

from pipeline.condense.english import Pattern

HAN: Final = re.compile(r"[\u4e00-\u9fff]")
_LEADS: Final = r"(?:^|[，,。；;：:！!、\s…]|但是?|不过|而且|所以|因为|其实|现在|目前|最近|今年|去年|大家好|你好|嗨|另外|是的|对了)"
_I: Final = _LEADS + r"我(?:们)?(?:现在|目前|已经|刚刚|刚|最近|一直|也|就|还)*"
_PHRASE: Final = r"(?P<v>[^\s，。；：！？、,.;:!?（）()的了吗呢]{1,20}+)(?!的时候|的那|的日子)"
_LIST: Final = r"(?P<v>[^\s，。；：！？,.;:!?（）()了吗呢]{1,30})"
_STOPS: Final = r"(?=\s*$|\s*[，。；：！？、,.;:!?（）()])"
_ORGANISATION: Final = (
    "公司|银行|大学|学院|医院|学校|中学|小学|高中|集团|科技|研究所|研究院|工厂|书店|餐厅|饭店|酒店|事务所|律所|政府|法院"
    "|出版社|报社|电视台|机构|工作室|幼儿园|谷歌|微软|腾讯|阿里巴巴|阿里|百度|字节跳动|华为|小米|京东|美团|苹果|亚马逊|特斯拉"
)
_CITY: Final = (
    "北京|上海|广州|深圳|杭州|南京|苏州|成都|重庆|武汉|西安|天津|长沙|郑州|青岛|大连|厦门|宁波|合肥|福州|济南|昆明|香港|澳门|台北"
    "|东京|大阪|首尔|新加坡|纽约|伦敦|巴黎|柏林|旧金山|洛杉矶|西雅图|多伦多|温哥华|悉尼|墨尔本"
)
_PROFESSION: Final = (
    "师|学生|研究生|博士生|大学生|员|记者|作者|学者|作家|画家|音乐家|科学家|医生|护士|歌手|职工|工人|教授|警察|司机|经理|农民|军人"
    "|会计|翻译|编辑|导演|模特|博主|老板|护工|法官|程序员"
)
_RELATIVE: Final = (
    "妻子|老婆|丈夫|老公|儿子|女儿|哥哥|弟弟|姐姐|妹妹|妈妈|母亲|爸爸|父亲|爷爷|奶奶|女朋友|男朋友|狗|猫"
)


def _pattern(key: str, regex: str, confidence: float, *, is_list: bool = False) -> Pattern:
    return Pattern(key, ("我",), re.compile(regex), confidence, is_list)


PATTERNS: Final = (
    _pattern("residence", rf"{_I}(?:住在|居住在|定居在|定居|搬到了|搬到|搬去了|搬家到){_PHRASE}", 0.9),
    _pattern("home town", rf"{_I}(?:来自|出生在|是在(?=.{{1,8}}长大)){_PHRASE}", 0.8),
    _pattern("no longer residence", rf"{_I}不再住在{_PHRASE}", 0.9),
    _pattern("no longer residence", rf"{_I}不住在{_PHRASE}了", 0.9),
    _pattern("employer", rf"{_I}在(?P<v>[^\s，。；！？,.;!?]{{0,12}}?(?:{_ORGANISATION}|(?<![A-Za-z])[A-Z][A-Za-z]+))(?:工作|上班)", 0.85),
    _pattern("work place", rf"{_I}在(?P<v>{_CITY}|[^\s，。；！？,.;!?的]{{1,6}}[市省县])(?:工作|上班)", 0.85),
    _pattern("occupation", rf"{_I}是(?:一名|一位|一个|个|名)(?P<v>[^\s，。；！？,.;!?的]{{0,10}}?(?:{_PROFESSION})){_STOPS}", 0.8),
    _pattern("name", rf"{_I}(?:叫|名叫|的名字是|的名字叫){_PHRASE}", 0.9),
    _pattern("age", rf"(?:{_I}|我(?:名?叫|是|的名字[是叫])[^，,。]{{1,12}}[，,]\s*)(?:今年)?(?P<v>\d{{1,3}})岁", 0.85),
    _pattern("birthday", rf"{_I}的生日(?:是|在)(?P<v>[\d一二三四五六七八九十年月日号]{{2,12}})", 0.9),
    _pattern("allergy", rf"{_I}对{_LIST}过敏", 0.95, is_list=True),
    _pattern("diet", rf"{_I}(?:只)?(?:是|吃)(?P<v>素食者|素食主义者|素食|素)", 0.85),
    _pattern("does not eat", rf"{_I}(?:不吃|不能吃|不喝){_LIST}", 0.85, is_list=True),
    _pattern("language", rf"{_I}(?:会说|会讲|能说){_LIST}", 0.9, is_list=True),
    _pattern("dislikes", rf"{_I}(?:很|非常|最|特别)?(?:不喜欢|讨厌|不爱){_PHRASE}", 0.75),
    _pattern("likes", rf"{_I}(?:很|非常|最|特别|超)?(?:喜欢|爱|热爱){_PHRASE}", 0.7),
    _pattern("plan", rf"{_I}(?P<v>(?:打算|计划|准备|要)?(?:明天|后天|下周|下个月|下星期.|明年|\d+月(?:\d+[日号])?)[^，。；！？,.;!?]{{2,24}})", 0.7),
    _pattern("", rf"{_LEADS}我(?:的|家)?(?P<k>{_RELATIVE})(?:的名字)?(?:叫做|叫){_PHRASE}", 0.8),
    _pattern("", rf"{_LEADS}我的(?P<k>[^\s，。；！？,.;!?是叫的]{{1,8}})是{_PHRASE}", 0.55),
)  # fmt: skip
NEGATED: Final = re.compile(r"(?:不|没|没有|并非|从未)[^，。；]{0,4}$")
_PRONOUNS: Final = re.compile(r"[他她它你您我这那]|大家|什么|怎么|自己")
_GOES_ON: Final = re.compile(r"之前|之后|以前|以后|时候|[很都就会想没不他她你我]|是")
_NO_NAME: Final = re.compile(r"外卖|出租|车|滴滴|快递|人|醒|老板|朋友|妈|爸|不|一")
_NO_GENERIC: Final = re.compile(r"[^\s]*(?:意思|问题|想法|目标|建议|错|看法|观点|理解|感觉|意见|计划|代码|程序)$")
_MOST_NAME_CHARS, _MOST_PLACE_CHARS = 6, 12


def is_value(key: str, value: str) -> bool:
    """Tell whether a value written in Chinese may be one of this key's."""
    if key == "plan":
        return True
    if _PRONOUNS.match(value) or _NO_GENERIC.match(key):
        return False
    if key == "name" or re.fullmatch(_RELATIVE, key):
        return len(value) <= _MOST_NAME_CHARS and not (_NO_NAME.match(value) or _GOES_ON.search(value))
    if key in {"residence", "home town", "employer", "work place"}:
        return len(value) <= _MOST_PLACE_CHARS and not _GOES_ON.search(value)
    return True
