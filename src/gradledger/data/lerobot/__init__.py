"""LeRobotDataset v3 folders: read, written and checked with pyarrow (videos: PyAV), without importing lerobot."""

from gradledger.data.lerobot.check import check as check
from gradledger.data.lerobot.convert import convert as convert
from gradledger.data.lerobot.layout import Feature as Feature
from gradledger.data.lerobot.layout import Info as Info
from gradledger.data.lerobot.reader import Folder as Folder
from gradledger.data.lerobot.reader import open_folder as open_folder
from gradledger.data.lerobot.writer import Episode as Episode
from gradledger.data.lerobot.writer import write as write
