"""How people tell of themselves in English: one pattern a line, what stands for the fact in its group ``v``.

A pattern says what is stated, `statements` and `facts` what is not meant. A fact's key is one of the words below, or
what the group ``k`` holds. Keys that may have several values at once are named in `facts.MANY`.
"""

# ruff: noqa: E501 - a pattern stands on one line
from __future__ import annotations

import re
from typing import Final, NamedTuple


class Pattern(NamedTuple):
    """What a sentence must hold to state a fact; "" as a key: the group ``k`` is the key.

    ``hints``: in lower case it holds one of these, or it is not looked at closely.
    """

    key: str
    hints: tuple[str, ...]
    stated: re.Pattern[str]
    confidence: float
    is_list: bool = False


ENDED: Final = "no longer "
"""Before the key of what held until it was said that it does not any more."""
_NOW: Final = r"(?:now|currently|still|just|recently|also|actually|really|finally|even|officially)\s+"
_I: Final = rf"(?<![\w'])I(?:'ve|\s+have)?\s+(?:{_NOW})*"
_I_AM: Final = rf"(?<![\w'])(?:I'm|I\s+am|Im)\s+(?:{_NOW})*"
_WE: Final = rf"(?<![\w'])(?:I|we)(?:'ve|\s+have)?\s+(?:{_NOW})*"
_ENDS: Final = (
    r"(?=\s*$|\s*[,;:!?()…—–]|\s*\.(?!\w)|\s+-\s|\s+(?:and|but|because|since|so|with|when|while|which|who|where|now|anymore|these"
    r"|at the moment|right now|for|until|as|after|before|too|though|although|if|then|again|today|yesterday|last|this"
    r"|next|about|btw|together|instead|on my own)\b"
    r"|\s+in\s+(?:the\s+)?(?:(?:early|late|mid)\W)?(?:spring|summer|autumn|fall|winter|19\d\d|20\d\d|january|february|march"
    r"|april|may|june|july|august|september|october|november|december)\b)"
)
_PHRASE: Final = rf"(?P<v>[^\s,.;:!?()…](?:[^,;:!?()…\n.]|\.(?=\w)){{0,60}}?){_ENDS}"
_LIST: Final = (
    r"(?P<v>[^\s.;:!?()…][^.;:!?()…\n]{0,80}?)(?=\s*$|\s*[.;:!?()…]|\s+(?:but|because|since|so|when|which)\b)"
)
_NAME: Final = r"(?P<v>(?-i:[A-ZÀ-Þ][\w'’-]*(?:\s[A-ZÀ-Þ][\w'’-]*){0,3}))"
_RELATIVE: Final = (
    "wife|husband|partner|fiancé|fiancée|fiance|girlfriend|boyfriend|son|daughter|brother|sister|mother|mom|mum|father"
    "|dad|grandmother|grandma|grandfather|grandpa|aunt|uncle|cousin|niece|nephew|boss|roommate|flatmate|best friend"
)
_PET: Final = "dog|puppy|cat|kitten|rabbit|hamster|parrot|horse|pony|turtle|tortoise|bird|goldfish|snake|lizard"
_PROFESSION: Final = (
    "accountant|actor|actress|analyst|architect|artist|author|baker|barista|biologist|carpenter|chef|chemist|coach"
    "|consultant|cook|dentist|designer|developer|doctor|driver|economist|editor|electrician|engineer|farmer"
    "|firefighter|freelancer|gardener|historian|journalist|judge|lawyer|lecturer|librarian|manager|mechanic|musician"
    "|nurse|paramedic|pharmacist|photographer|physicist|physiotherapist|pilot|plumber|police officer|postdoc"
    "|professor|programmer|psychologist|researcher|sailor|scientist|singer|social worker|soldier|student|surgeon"
    "|teacher|therapist|translator|vet|veterinarian|waiter|waitress|welder|writer"
)
_LANGUAGE: Final = (
    "arabic|bengali|bulgarian|cantonese|catalan|chinese|croatian|czech|danish|dutch|english|estonian|finnish|french"
    "|german|greek|hebrew|hindi|hungarian|icelandic|indonesian|irish|italian|japanese|korean|latin|latvian"
    "|lithuanian|malay|mandarin|norwegian|persian|polish|portuguese|romanian|russian|serbian|slovak|slovenian|spanish"
    "|swahili|swedish|tamil|thai|turkish|ukrainian|urdu|vietnamese|welsh"
)
_MONTH: Final = "january|february|march|april|may|june|july|august|september|october|november|december"
_DATE: Final = (
    rf"(?:(?:on|in|at|by|this|next|early|late|around)\s+)*(?:the\s+)?(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    rf"|(?:\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?)?(?:{_MONTH})(?:\s+\d{{1,2}}(?:st|nd|rd|th)?)?(?:,?\s+\d{{4}})?"
    r"|\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}|tomorrow|tonight|next\s+(?:week|month|year|spring|summer|autumn"
    r"|fall|winter)|this\s+(?:week|weekend|month|year|spring|summer|autumn|fall|winter)|(?:in|within)\s+(?:a|an|one|two"
    r"|three|four|\d+)\s+(?:day|week|month|year)s?|(?:in\s+)?20\d\d)"
)
_NOT: Final = r"(?:don't|do\s+not|doesn't)"
_NO_MORE: Final = r"(?:any\s?more|any\s+longer|no\s+more|no\s+longer)"
_UNTIL_NO_MORE: Final = rf"(?P<v>[^\s,.;:!?()…][^,;:!?()…\n.]{{0,60}}?)\s+{_NO_MORE}\b(?!\s+than)"
_NO_GENERIC: Final = (
    "question|problem|issue|point|guess|opinion|idea|goal|plan|concern|understanding|advice|answer|bad|fault|turn|view"
    "|understanding|only|main|first|last|next|other|own|mistake|hope|suggestion|impression|feeling|thought|way|life"
    "|day|week|morning|code|error|query|script|function|program"
)


def _pattern(key: str, hints: str, regex: str, confidence: float, *, is_list: bool = False) -> Pattern:
    return Pattern(key, tuple(hints.split("|")), re.compile(regex, re.IGNORECASE), confidence, is_list)


def _ended(key: str, hints: str, verb: str) -> tuple[Pattern, Pattern]:
    """Read that something held and does not any more; a plain 'not' does not tell that it ever did."""
    return (
        _pattern(ENDED + key, "no longer", rf"(?<![\w'])(?:I|we)\s+no\s+longer\s+{verb}\s+{_PHRASE}", 0.9),
        _pattern(ENDED + key, hints, rf"(?<![\w'])(?:I|we)\s+(?:{_NOT}\s+)?{verb}\s+{_UNTIL_NO_MORE}", 0.9),
    )


PATTERNS: Final = (
    *_ended("residence", "liv", r"live\s+in"),
    *_ended("employer", "work", r"work\s+(?:at|for)"),
    *_ended("occupation", "work", r"work\s+as(?:\s+an?)?"),
    _pattern("no longer residence", "moved", rf"{_WE}moved\s+(?:away\s+from|out\s+of)\s+{_PHRASE}", 0.85),
    _pattern("no longer employer", "left|quit", rf"{_I}(?:left|quit)\s+my\s+job\s+(?:at|with)\s+{_PHRASE}", 0.85),
    _pattern("no longer marital status", "no longer", r"(?<![\w'])(?:I'm|I\s+am)\s+no\s+longer\s+(?P<v>married|engaged|single)\b", 0.85),
    _pattern("no longer diet", "no longer", r"(?<![\w'])(?:I'm|I\s+am)\s+no\s+longer\s+(?:an?\s+)?(?P<v>vegetarian|vegan|pescatarian)\b", 0.9),
    _pattern("no longer allergy", "no longer", rf"(?<![\w'])(?:I'm|I\s+am)\s+no\s+longer\s+allergic\s+to\s+{_LIST}", 0.9, is_list=True),
    _pattern("residence", "liv", rf"{_WE}(?:live|am\s+living|are\s+living)\s+in\s+{_PHRASE}", 0.9),
    _pattern("residence", "liv|based|settled", rf"(?<![\w'])(?:I'm|we're)\s+(?:{_NOW})*(?:living|based|settled)\s+in\s+{_PHRASE}", 0.9),
    _pattern("residence", "moved|relocated", rf"{_WE}(?:moved|relocated)\s+(?:back\s+)?(?:from\s+[\w' -]{{1,40}}?\s+)?to\s+{_PHRASE}", 0.9),
    _pattern("home town", "from", rf"{_I_AM}(?:originally\s+)?from\s+{_PHRASE}", 0.8),
    _pattern("home town", "grew", rf"{_I}grew\s+up\s+in\s+{_PHRASE}", 0.8),
    _pattern("birthplace", "born", rf"(?<![\w'])I\s+was\s+born\s+in\s+(?!{_MONTH}|\d|the\s)(?:\w+\s+)?{_PHRASE}", 0.9),
    _pattern("birthday", "birthday", rf"\bmy\s+birthday(?:'s|\s+is)\s+(?:on\s+)?(?:the\s+)?{_PHRASE}", 0.9),
    _pattern("birthday", "born", rf"(?<![\w'])I\s+was\s+born\s+(?:on|in)\s+(?:the\s+)?(?P<v>(?:{_MONTH}|\d)[\w ,./-]{{0,24}}?){_ENDS}", 0.9),
    _pattern("age", "i'm|i am|im ", rf"{_I_AM}(?P<v>\d{{1,3}})(?=\s+years?\s+old|\s+y/?o\b|\s*$|\s*[,.!;](?!\d))", 0.85),
    _pattern("age", "turned", rf"{_I}turned\s+(?P<v>\d{{1,3}})\b", 0.85),
    _pattern("name", "name", rf"\bmy\s+(?:full\s+|first\s+)?name(?:'s|\s+is)\s+{_NAME}", 0.95),
    _pattern("name", "called|named", rf"{_I_AM}(?:called|named)\s+{_NAME}", 0.9),
    _pattern("name", "call", rf"(?:^|\b(?:please|just|can|you|everyone|people|friends)\s+)call(?:s)?\s+me\s+{_NAME}", 0.85),
    _pattern("name", "go by", rf"{_I}go\s+by\s+{_NAME}", 0.85),
    _pattern("occupation", "work as|worked", rf"{_I}(?:work|worked\s+up\s+to\s+be)\s+as\s+(?:an?\s+|the\s+)?{_PHRASE}", 0.9),
    _pattern("occupation", "working as", rf"{_I_AM}working\s+as\s+(?:an?\s+|the\s+)?{_PHRASE}", 0.9),
    _pattern("occupation", "i'm|i am|im ", rf"{_I_AM}an?\s+(?P<v>(?:[\w-]+\s+){{0,2}}?(?:{_PROFESSION}))\b", 0.85),
    _pattern("occupation", "job|profession|occupation", rf"\bmy\s+(?:job|profession|occupation)(?:'s|\s+is)\s+(?:being\s+)?(?:an?\s+|as\s+an?\s+)?{_PHRASE}", 0.8),
    _pattern("occupation", "job|position|role", rf"{_I}(?:got|started|took|accepted)\s+(?:a\s+)?(?:new\s+)?(?:job|position|role)\s+as\s+(?:an?\s+)?{_PHRASE}", 0.9),
    _pattern("employer", "work at|work for", rf"{_I}work\s+(?:at|for)\s+{_PHRASE}", 0.85),
    _pattern("employer", "working", rf"{_I_AM}working\s+(?:at|for)\s+{_PHRASE}", 0.85),
    _pattern("employer", "start|began|joined|job", rf"{_I}(?:started|began|joined|got\s+a\s+(?:new\s+)?job)\s+(?:working\s+)?(?:at|for)\s+{_PHRASE}", 0.85),
    _pattern("studies", "study", rf"(?:{_I}study|{_I_AM}studying)\s+(?!for\b){_PHRASE}", 0.8),
    _pattern("marital status", "married|engaged|single|divorced|widowed", rf"{_I_AM}(?P<v>married|engaged|single|divorced|widowed)\b(?!\s+\w+(?:-|\s)parent)", 0.85),
    _pattern("marital status", "got", rf"{_WE}got\s+(?P<v>married|engaged|divorced)\b", 0.85),
    _pattern("", "my ", rf"\bmy\s+(?P<k>{_RELATIVE})(?:'s\s+name)?(?:'s|\s+is)\s+(?:called\s+|named\s+)?{_NAME}(?!\s+\w+ing\b)", 0.85),
    _pattern("", "my ", rf"\bmy\s+(?P<k>{_RELATIVE}),?\s+{_NAME}\b", 0.75),
    _pattern("children", "kid|child|son|daughter|twin", rf"{_WE}(?:have|got)\s+(?P<v>(?:an?|one|two|three|four|five|six|\d+)\s+(?:\w+\s+)?(?:kids?|children|child|sons?|daughters?|twins))\b", 0.85),
    _pattern("siblings", "brother|sister|sibling", rf"{_I}(?:have|got)\s+(?P<v>(?:an?|one|two|three|four|five|six|no|\d+)\s+(?:\w+\s+)?(?:brothers?|sisters?|siblings?))\b", 0.85),
    _pattern("", "my ", rf"\bmy\s+(?P<k>{_PET})(?:'s\s+name)?(?:'s|\s+is)\s+(?:called\s+|named\s+)?{_NAME}", 0.85),
    _pattern("", "my ", rf"\bmy\s+(?P<k>{_PET}),?\s+{_NAME}\b", 0.75),
    _pattern("", "called|named", rf"{_WE}(?:have|own|got|adopted|bought)\s+an?\s+(?:\w+\s+)?(?P<k>{_PET})\s+(?:called|named)\s+{_NAME}", 0.9),
    _pattern("pets", "have|own|got|adopted|bought", rf"{_WE}(?:have|own|got|adopted|bought)\s+(?P<v>(?:an?|one|two|three|four|\d+)\s+(?:\w+\s+)?(?:{_PET})s?)\b", 0.85),
    _pattern("allergy", "allergic", rf"{_I_AM}(?:\w+ly\s+)?allergic\s+to\s+{_LIST}", 0.95, is_list=True),
    _pattern("allergy", "allerg", rf"{_I}(?:have|got)\s+(?:an?\s+)?(?:\w+\s+)?allerg(?:y|ies)\s+to\s+{_LIST}", 0.95, is_list=True),
    _pattern("allergy", "allergy", rf"{_I}(?:have|got)\s+an?\s+(?:severe\s+|bad\s+|mild\s+)?(?P<v>[\w-]+)\s+allergy\b", 0.95),
    _pattern("diet", "i'm|i am|im ", rf"{_I_AM}(?:an?\s+)?(?P<v>vegetarian|vegan|pescatarian|gluten[- ]free|lactose[- ]intolerant|celiac|coeliac|teetotal|diabetic)\b", 0.9),
    _pattern("does not eat", "eat|drink", rf"(?<![\w'])I\s+(?:don't|do\s+not|can't|cannot|can\s+not|never)\s+(?:eat|drink)\s+{_LIST}", 0.85, is_list=True),
    _pattern("language", "speak", rf"{_I}(?:can\s+)?speak\s+(?:(?!no\b|little|hardly|barely|zero|neither|not\b)\w+\s+)?(?P<v>(?:fluent\s+)?(?:{_LANGUAGE})\b[^.;!?\n]{{0,60}})", 0.9, is_list=True),
    _pattern("language", "fluent|learning", rf"{_I_AM}(?:fluent\s+in|learning)\s+(?P<v>(?:{_LANGUAGE})\b[^.;!?\n]{{0,60}})", 0.8, is_list=True),
    _pattern("dislikes", "hate|dislike|detest|stand|like|enjoy|love", rf"(?<![\w'])I\s+(?:really\s+|absolutely\s+|just\s+)*(?:hate|dislike|detest|can't\s+stand|cannot\s+stand|don't\s+(?:really\s+)?(?:like|enjoy)|do\s+not\s+(?:like|enjoy)|no\s+longer\s+(?:like|love|enjoy))\s+{_PHRASE}", 0.75),
    _pattern("likes", "love|like|enjoy|adore|prefer", rf"(?<![\w'])I\s+(?:really\s+|absolutely\s+|just\s+|still\s+|do\s+|also\s+)*(?:love|like|enjoy|adore|prefer)\s+{_PHRASE}", 0.7),
    _pattern("likes", "fan of|into", rf"{_I_AM}(?:a\s+(?:big\s+|huge\s+)?fan\s+of|really\s+into|into)\s+{_PHRASE}", 0.7),
    _pattern("plan", "going|flying|travel|moving|driving|visiting|starting|married|meeting|seeing|planning", rf"{_WE}(?:'m|'re|am|are)?\s*(?P<v>(?:going|flying|travelling|traveling|moving|driving|visiting|starting|getting\s+married|meeting|seeing|planning)\b[^.,;!?\n]{{0,60}}?\b{_DATE})", 0.75),
    _pattern("plan", "going|flying|travel|moving|driving|visiting|starting|married|meeting|seeing|planning", rf"(?<![\w'])(?:I'm|we're)\s+(?:{_NOW})*(?P<v>(?:going|flying|travelling|traveling|moving|driving|visiting|starting|getting\s+married|meeting|seeing|planning)\b[^.,;!?\n]{{0,60}}?\b{_DATE})", 0.75),
    _pattern("plan", "will|'ll", rf"{_WE}(?:will|'ll)\s+(?P<v>\w+\b[^.,;!?\n]{{0,60}}?\b{_DATE})", 0.7),
    _pattern("plan", "have|got", rf"{_WE}(?:have|got)\s+(?P<v>(?:an?|my|our|the)\s+[^.,;!?\n]{{2,50}}?\b{_DATE})", 0.7),
    _pattern("", "favo", rf"\bmy\s+(?P<k>favou?rite\s+[\w-]+(?:\s+[\w-]+)?)(?:'s|\s+is|\s+are)\s+{_PHRASE}", 0.85),
    _pattern("", "my ", rf"\bmy\s+(?P<k>(?!(?:{_NO_GENERIC}|{_RELATIVE}|{_PET}|name|birthday|job|profession|favou?rite)\b)[a-z][\w-]*(?:\s[a-z][\w-]*){{0,2}})\s+is\s+{_PHRASE}", 0.55),
)  # fmt: skip
"""The first pattern that reads a part of a sentence counts there for its key."""

REJECTED: Final = re.compile(
    r"(?:that|to|not|because|how|what|if|when|very|too|just|like|about|still|almost|being|really|quite|kind|sort|so|it"
    r"|this|them|you|your|him|her|those|these|one|fear|harmony|peace|here|there|it's|its|the way|the same|done|gone|on"
    r"|off|down|up|broken|ready|fine|ok|okay|full|over|out|no|never|going|getting|wrong|right|correct|good|bad|great"
    r"|better|worse|late|slow|myself|everything|nothing|something|anything|nowhere|somewhere|me|us|all|home|once|least"
    r"|work|sure|where|why|who|which|his|their|always)\b",
    re.IGNORECASE,
)
"""Beginnings of what is no value."""
NO_PLACE: Final = re.compile(
    r"(?:an?|my|our|his|her|their|another|one|some|two)\b|the\s(?!netherlands|hague|u\.?s|uk|bronx|philippines|bahamas"
    r"|czech|united|faroe|canary)",
    re.IGNORECASE,
)
PLACES: Final = frozenset({"residence", "home town", "birthplace"})
ORGANISATION: Final = re.compile(
    r"(?:an?|the)\s+(?:[\w-]+\s+){0,2}(?:bank|hospital|school|startup|start-up|university|college|company|restaurant|bakery"
    r"|hotel|law firm|firm|agency|newspaper|museum|library|clinic|pharmacy|supermarket|factory|ngo|charity|government"
    r"|insurer|consultancy|kindergarten|publisher|bookshop|bookstore|cafe|café)",
    re.IGNORECASE,
)
"""Employers that are told without a name."""
NO_NAME: Final = re.compile(
    r"(?:\d+(?::\d+)?\s*(?:am|pm|o'clock)?$|(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b|christmas|easter|halloween"
    rf"|(?:{_MONTH}|st|mt|ft|dr)$|(?:plan|phase|version|option|step|part|page|chapter|level|round|team|row|line|slide)\b)",
    re.IGNORECASE,
)
COMMON: Final = re.compile(
    r"an?|the|my|our|your|this|that|it|of|and|or|i|we|you|night|nights|noon|dawn|dusk|midnight|home|work|school|times"
    r"|peanuts|free|food|money|cash|fun|exposure|living|others|people|family|friends|clients|customers|hours|days|weeks"
    r"|months|years|hope|fear|harmony|peace|poverty|luxury|comfort|chaos|denial|misery|silence|solitude|darkness|exile"
    r"|sin|shame|terror|style|pain|agony|squalor|isolation|constant|total|complete|pure|abject|relative|interesting|dread"
    r"|love|debt|doubt|anger|regret|town|city|country|countryside|village|dorm|dorms|suburbs|suburbia|abroad|sync|bed"
    r"|management|production|sales|support|marketing|design|engineering|testing|strike|dismiss|adjourn|vegan\w*|plant.*"
    r"|clean|light|dark|remote|hybrid|full-time|part-time|(?!beijing|nanjing|chongqing|wyoming|italy|sicily|philly|boeing|reading)\w+(?:ing|ness|tion|ment|ly)|first|second|next|last",
    re.IGNORECASE,
)
"""What in a text without capitals is no name."""
TOOLS: Final = re.compile(
    "slack|teams|zoom|discord|telegram|signal|whatsapp|notion|jira|trello|asana|linear|confluence|gmail"
    "|outlook|protonmail|linux|windows|macos|mac|ubuntu|debian|fedora|arch|android|ios|iphone|chrome|firefox"
    "|safari|edge|brave|python|java|rust|golang|go|typescript|javascript|kotlin|swift|scala|ruby|elixir"
    "|haskell|react|vue|angular|svelte|postgres|postgresql|mysql|sqlite|mongodb|redis|kafka|docker|kubernetes"
    "|podman|terraform|ansible|git|github|gitlab|bitbucket|jenkins|aws|azure|gcp|heroku|vercel|netlify"
    "|cloudflare|vim|neovim|emacs|vscode|cursor|pycharm|intellij|obsidian|evernote|figma|sketch|spotify"
    "|netflix|twitter|mastodon|bluesky|threads|facebook|instagram|reddit|excel|sheets|word|docs|pandas|polars"
    "|numpy|pytorch|tensorflow|jax|django|flask|fastapi|spring",
    re.IGNORECASE,
)
"""What people move to that is no place."""
NO_TASTE: Final = re.compile(
    r"\b(?:better|best|more|most|less|your|yours|both|neither|either)$|^(?:your|his|her|their|its|both|option|version)\b"
    r"|^(?:the|this|that|these|those|an?)\s+(?:\w+\s+){0,2}(?:options?|versions?|ideas?|ones?|first|second|third|last"
    r"|latter|former|answers?|approach|suggestions?|drafts?|way|choices?|plans?|look|sound|solutions?|code|examples?|titles?"
    r"|names?|paragraphs?|sentences?|responses?|tone|wording|result|fact|new|old|other)\b",
    re.IGNORECASE,
)
"""What is liked of what was just said, not by and large."""
NO_ALLERGEN: Final = re.compile(
    r"^(?:early\s+)?(?:mornings?|mondays?|weekdays?|people|stupid\w*|idiots?|fools?|work\w*|jobs?|maths?|algebra|bullshit|bs"
    r"|drama|nonsense|exercise|exercising|gyms?|homework|meetings?|commitments?|small talk|effort|chores|cleaning|cooking"
    r"|running|sports?|fun|happiness|love|feelings|emotions|responsibilit\w+|adulting|taxes|school|deadlines?|politics"
    r"|change|boredom|success|failure|javascript|java|php|excel|powerpoint|emails?|you|him|her|them|this|that|lies?|liars?"
    r"|\w+(?:ism|ness|ity))\b",
    re.IGNORECASE,
)
"""What nobody is allergic to but in jest."""
