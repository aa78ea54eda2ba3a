"""Twelve chats in Chinese, and questions about them: some in their words, some in others.

Of each question the turn that answers it is known. Written for this, so that anybody may read and share it.
"""

from __future__ import annotations

from typing import NamedTuple


class Asked(NamedTuple):
    """A question, the turn that answers it (session and place in it), and whether it has words of that turn."""

    text: str
    session: str
    place: int
    by_words: bool


SESSIONS: dict[str, tuple[str, ...]] = {
    "搬家": (
        "我们下个月要搬到杭州去住了。",
        "怎么突然决定的？",
        "我爱人在那边的医院找到了新工作，做儿科护士。",
        "房子找好了吗？",
        "租了一套两居室，离西湖只有十分钟的路，每月六千五。",
        "那真不错，到时候我去看你们。",
    ),
    "猫": (
        "我家的猫昨天从阳台跳下去了，吓死我了。",
        "它没事吧？",
        "兽医说左后腿骨折，要打三个星期的石膏。",
        "可怜的小家伙，它叫什么来着？",
        "叫豆包，是我妹妹从救助站领回来的。",
    ),
    "考试": (
        "我的驾照考试又没通过，这是第三次了。",
        "哪一项没过？",
        "侧方停车，压线了。",
        "别灰心，多练几次就好。",
        "教练让我周末去训练场加练两个小时。",
    ),
    "旅行": (
        "国庆节我们打算去敦煌看莫高窟。",
        "怎么去呢？",
        "先坐飞机到兰州，再坐一夜的火车。",
        "一个人要花多少钱？",
        "算下来大概四千块，门票要提前一个月预约。",
        "记得多带水，那里非常干燥。",
    ),
    "做饭": (
        "今天我第一次做红烧肉，把锅烧糊了。",
        "哈哈，糖放早了吧？",
        "对，我妈说炒糖色要用小火，不能着急。",
        "下次先焯水，再慢慢炖一个钟头。",
        "好，我把你的方法记在本子上了。",
    ),
    "工作": (
        "老板把我调到销售部去了，我不太高兴。",
        "为什么不高兴？",
        "我学的是会计，不喜欢整天打电话。",
        "你可以跟他谈谈。",
        "我已经约了他星期四下午三点见面。",
        "祝你好运。",
    ),
    "孩子": (
        "女儿上学期数学只考了六十二分。",
        "需要请个家教吗？",
        "我们请了一位退休的老师，每个星期天来一次。",
        "有进步吗？",
        "这次期中考到了八十九分，她高兴得跳起来。",
    ),
    "健康": (
        "体检报告出来了，我的血压偏高。",
        "医生怎么说？",
        "让我少吃盐，每天走一万步，三个月以后复查。",
        "你还抽烟吗？",
        "去年冬天就戒了，现在闻到烟味都难受。",
    ),
    "音乐": (
        "我报了一个古筝班，每周二晚上上课。",
        "以前学过乐器吗？",
        "小时候拉过两年小提琴，后来放弃了。",
        "古筝贵不贵？",
        "我买了一台二手的，一千八百块，音色很好。",
    ),
    "生日": (
        "外婆下周六过八十岁生日。",
        "你们怎么庆祝？",
        "在老家的饭店订了五桌，亲戚都回来。",
        "送什么礼物？",
        "我给她织了一条红围巾，哥哥送她一把按摩椅。",
    ),
    "电脑": (
        "我的笔记本电脑开不了机，论文全在里面。",
        "有备份吗？",
        "只有两个月以前的，后面的三章都没有。",
        "拿去修理店试试，硬盘应该没坏。",
        "师傅把数据都救回来了，收了三百块。",
        "以后记得存到云盘里。",
    ),
    "跑步": (
        "我报名参加了十一月的上海马拉松。",
        "你能跑完全程吗？",
        "我选的是半程，二十一公里。",
        "现在每天练多少？",
        "早上六点沿着江边跑八公里，膝盖有点疼。",
    ),
}

QUESTIONS: tuple[Asked, ...] = (
    Asked("谁在医院找到了新工作？", "搬家", 2, by_words=True),
    Asked("两居室每月的房租是多少？", "搬家", 4, by_words=True),
    Asked("兽医说腿怎么了？", "猫", 2, by_words=True),
    Asked("豆包是从哪里领回来的？", "猫", 4, by_words=True),
    Asked("侧方停车为什么没过？", "考试", 2, by_words=True),
    Asked("教练让我周末做什么？", "考试", 4, by_words=True),
    Asked("莫高窟是什么时候去看？", "旅行", 0, by_words=True),
    Asked("从兰州坐什么去？", "旅行", 2, by_words=True),
    Asked("炒糖色要用什么火？", "做饭", 2, by_words=True),
    Asked("约了星期四几点见面？", "工作", 4, by_words=True),
    Asked("退休的老师什么时候来？", "孩子", 2, by_words=True),
    Asked("医生让我少吃什么？", "健康", 2, by_words=True),
    Asked("二手的古筝多少钱？", "音乐", 4, by_words=True),
    Asked("饭店订了几桌？", "生日", 2, by_words=True),
    Asked("师傅收了多少钱救回数据？", "电脑", 4, by_words=True),
    Asked("上海马拉松在几月？", "跑步", 0, by_words=True),
    Asked("新的住处靠近哪个景点？", "搬家", 4, by_words=False),
    Asked("妻子是做哪一行的？", "搬家", 2, by_words=False),
    Asked("宠物受了什么伤？", "猫", 2, by_words=False),
    Asked("学开车失败过几回？", "考试", 0, by_words=False),
    Asked("假期的目的地是哪儿？", "旅行", 0, by_words=False),
    Asked("路费预算大约多少？", "旅行", 4, by_words=False),
    Asked("烹饪时出了什么差错？", "做饭", 0, by_words=False),
    Asked("大学读的什么专业？", "工作", 2, by_words=False),
    Asked("孩子的成绩后来提高了吗？", "孩子", 4, by_words=False),
    Asked("什么时候不再吸烟的？", "健康", 4, by_words=False),
    Asked("童年玩过哪种乐器？", "音乐", 2, by_words=False),
    Asked("老人家收到了哪些贺礼？", "生日", 4, by_words=False),
    Asked("文件丢失了多少内容？", "电脑", 2, by_words=False),
    Asked("锻炼时身体哪里不舒服？", "跑步", 4, by_words=False),
)
