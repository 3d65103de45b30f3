"""Annotation files of the text-to-video benchmarks, tiny, in their public formats, and what is read of them."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path


def write_msrvtt(folder: Path) -> None:
    videos = [
        {"category": 9, "url": f"https://www.youtube.com/watch?v=abc{i}", "video_id": f"video{i}", "start time": 1.5,
         "end time": 12.0, "split": "train" if i < 2 else "test", "id": i}
        for i in range(4)
    ]  # fmt: skip
    # grouped by nothing: the captions of a video lie apart
    said = [(0, "a car drives"), (1, "a woman  sings "), (0, 'the "red" car, again'), (2, "unused"), (1, "a song\n")]
    sentences = [{"caption": text, "video_id": f"video{i}", "sen_id": n} for n, (i, text) in enumerate(said)]
    info = {"contributor": "nobody", "data_created": "2016", "version": "1.0"}
    (folder / "MSRVTT_data.json").write_text(json.dumps({"info": info, "videos": videos, "sentences": sentences}))
    (folder / "MSRVTT_train.9k.csv").write_text("video_id\nvideo0\nvideo1\n")
    (folder / "MSRVTT_train.7k.csv").write_text("video_id\r\nvideo1\r\n")
    (folder / "MSRVTT_JSFUSION_test.csv").write_text(
        'key,vid_key,video_id,sentence\nret0,msr9770,video3,"a dog, and a cat, play"\nret1,msr9771,video2,a man talks\n'
    )


def write_msvd(folder: Path) -> None:
    captions = {
        "-4wsuPCjDBc_5_15": [["a", "squirrel", "eats"], ["an", "animal", "eats", "a", "nut"]],
        "mv89psg6zh4_33_46": [["a", "bird", "bathes"]],
        "R2DvpPTfl-E_20_25": [["two", "men", "ride"], ["men", "on", "bikes"], ["..."]],
        "never_listed_0_1": [["unused"]],
    }
    with (folder / "raw-captions.pkl").open("wb") as file:
        pickle.dump(captions, file, protocol=0)  # as written by the Python of that time
    for split, name in (("train", "-4wsuPCjDBc_5_15"), ("val", "mv89psg6zh4_33_46"), ("test", "R2DvpPTfl-E_20_25")):
        (folder / f"{split}_list.txt").write_text(f"{name}\n\n")


LSMDC_IDS = tuple(f"{film}_00.0{n}.51.926-00.0{n}.54.129" for n, film in enumerate(
    ("0001_American_Beauty", "1004_Juno", "3009_BATTLE_LOS_ANGELES")))  # fmt: skip


def write_lsmdc(folder: Path) -> None:
    def row(number: int, text: str) -> str:
        times = ["00:00:51.926", "00:00:54.129", "00:00:51.926", "00:00:54.129"]
        return "\t".join([LSMDC_IDS[number], *times, text]) + "\n"

    # a quotation mark that is never closed, and a clip that comes back later
    train = row(0, '"SOMEONE smiles, and leaves.') + row(0, "He shuts the door.")
    (folder / "LSMDC16_annos_training.csv").write_text(train)
    (folder / "LSMDC16_annos_val.csv").write_bytes(row(1, "She drinks at a café.").encode("iso-8859-1"))
    (folder / "LSMDC16_challenge_1000_publictect.csv").write_text(row(2, "A helicopter lands."))


def write_didemo(folder: Path) -> None:
    def entry(number: int, video: str, text: str) -> dict[str, object]:
        # `times` of several annotators, which need not agree
        return {"annotation_id": number, "description": text, "video": video, "times": [[0, 1], [1, 1]],
                "num_segments": 6, "dl_link": "https://www.flickr.com/x", "context": ""}  # fmt: skip

    rows = {
        "train": [entry(0, "1@N00_11_aa.avi", "a dog runs."), entry(1, "2@N00_22_bb.mov", "waves"),
                  entry(2, "1@N00_11_aa.avi", " the dog stops"), entry(3, "9@N00_99_zz.avi", "not listed")],
        "val": [entry(4, "3@N00_33_cc.m4v", "a child waves")],
        "test": [entry(5, "4@N00_44_dd.mp4", "the camera zooms in"), entry(6, "4@N00_44_dd.mp4", "a hat")],
    }  # fmt: skip
    lists = {"train": "1@N00_11_aa.avi\n2@N00_22_bb.mov\n8@N00_88_yy.avi\n", "val": "3@N00_33_cc.m4v\n",
             "test": "4@N00_44_dd.mp4"}  # fmt: skip
    for split in rows:
        (folder / f"{split}_data.json").write_text(json.dumps(rows[split]))
        (folder / f"{split}_list.txt").write_text(lists[split])


def write_activitynet(folder: Path) -> None:
    train = {
        "v_QOlSCBRmfWY": {"duration": 82.73, "timestamps": [[0.83, 19.86], [17.37, 60.81]],
                          "sentences": ["A young woman is seen.", " The girl dances."]},
        "v_ehGHCYKzyZ8": {"duration": 61.72, "timestamps": [[0, 10.23]], "sentences": [" A man dances. "]},
    }  # fmt: skip
    said = {"v_uqiMw7tQ1Cc": "A weight lifting tutorial.", "v_bXdq2zI1Ms0": "A man throws a frisbee."}
    test = {video: {"duration": 55.15, "timestamps": [[0, 4.14]], "sentences": [text]} for video, text in said.items()}
    (folder / "train.json").write_text(json.dumps(train))
    (folder / "val_1.json").write_text(json.dumps(test))
    (folder / "val_ids.json").write_text(json.dumps(["v_bXdq2zI1Ms0", "v_uqiMw7tQ1Cc", "v_bXdq2zI1Ms0"]))


def write_youcook2(folder: Path) -> None:
    def step(number: int, start: int, end: int, text: str) -> dict[str, object]:
        return {"segment": [start, end], "id": number, "sentence": text}

    def video(subset: str, duration: float, *steps: dict[str, object]) -> dict[str, object]:
        return {"duration": duration, "subset": subset, "recipe_type": "113", "annotations": list(steps),
                "video_url": "https://www.youtube.com/watch?v=x"}  # fmt: skip

    database = {
        "GLd3aX16zBg": video("training", 241.62, step(0, 90, 102, "spread margarine"), step(1, 114, 127, " ... "),
                             step(2, 130, 141, "place a slice  of cheese")),
        "xHr8X2Wpmno": video("validation", 311.77, step(0, 31, 42, "pound the chicken")),
    }  # fmt: skip
    (folder / "youcookii_annotations_trainval.json").write_text(json.dumps({"database": database}))


def write_uca(folder: Path) -> None:
    def video(*sentences: tuple[float, float, str]) -> dict[str, object]:
        return {
            "duration": 129.08,
            "timestamps": [row[:2] for row in sentences],
            "sentences": [r[2] for r in sentences],
        }

    files = {
        "Train": {"Abuse001_x264": video((3.4, 7.4, "A woman enters."), (15.4, 7.3, "She leaves"))},
        "Val": {"Abuse043_x264": video((0.0, 12.5, "Nobody is there"))},
        "Test": {"Normal_Videos_003_x264": video((1.0, 9.0, " A car stops."), (2.0, 4.0, "It turns"))},
    }
    for split, videos in files.items():
        (folder / f"UCFCrime_{split}.json").write_text(json.dumps(videos))


WRITERS: dict[str, Callable[[Path], None]] = {
    "msrvtt": write_msrvtt,
    "msrvtt-7k": write_msrvtt,
    "msvd": write_msvd,
    "lsmdc": write_lsmdc,
    "didemo": write_didemo,
    "activitynet-paragraphs": write_activitynet,
    "youcook2": write_youcook2,
    "uca": write_uca,
}
"""What writes the files of each benchmark into a folder."""

EXPECTED = {
    "msrvtt": {
        "train": {"video0": ("a car drives", 'the "red" car, again'), "video1": ("a woman sings", "a song")},
        "test": {"video3": ("a dog, and a cat, play",), "video2": ("a man talks",)},
    },
    "msrvtt-7k": {
        "train": {"video1": ("a woman sings", "a song")},
        "test": {"video3": ("a dog, and a cat, play",), "video2": ("a man talks",)},
    },
    "msvd": {
        "train": {"-4wsuPCjDBc_5_15": ("a squirrel eats", "an animal eats a nut")},
        "val": {"mv89psg6zh4_33_46": ("a bird bathes",)},
        "test": {"R2DvpPTfl-E_20_25": ("two men ride", "men on bikes")},
    },
    "lsmdc": {
        "train": {LSMDC_IDS[0]: ('"SOMEONE smiles, and leaves.', "He shuts the door.")},
        "val": {LSMDC_IDS[1]: ("She drinks at a café.",)},
        "test": {LSMDC_IDS[2]: ("A helicopter lands.",)},
    },
    "didemo": {
        "train": {"1@N00_11_aa.avi": ("a dog runs. the dog stops",), "2@N00_22_bb.mov": ("waves",)},
        "val": {"3@N00_33_cc.m4v": ("a child waves",)},
        "test": {"4@N00_44_dd.mp4": ("the camera zooms in a hat",)},
    },
    "activitynet-paragraphs": {
        "train": {
            "v_QOlSCBRmfWY": ("A young woman is seen. The girl dances.",),
            "v_ehGHCYKzyZ8": ("A man dances.",),
        },
        "test": {"v_bXdq2zI1Ms0": ("A man throws a frisbee.",), "v_uqiMw7tQ1Cc": ("A weight lifting tutorial.",)},
    },
    "youcook2": {
        "train": {"GLd3aX16zBg": ("spread margarine", "place a slice of cheese")},
        "test": {"xHr8X2Wpmno": ("pound the chicken",)},
    },
    "uca": {
        "train": {"Abuse001_x264": ("A woman enters.", "She leaves")},
        "val": {"Abuse043_x264": ("Nobody is there",)},
        "test": {"Normal_Videos_003_x264": ("A car stops.", "It turns")},
    },
}
"""The captions of each video of each split of these files, in order."""

MOMENTS = {
    "youcook2": {
        "GLd3aX16zBg#enc#0": (90.0, 102.0, 241.62),
        "GLd3aX16zBg#enc#1": (130.0, 141.0, 241.62),
        "xHr8X2Wpmno#enc#0": (31.0, 42.0, 311.77),
    },
    "uca": {
        "Abuse001_x264#enc#0": (3.4, 7.4, 129.08),
        "Abuse001_x264#enc#1": (7.3, 15.4, 129.08),
        "Abuse043_x264#enc#0": (0.0, 12.5, 129.08),
        "Normal_Videos_003_x264#enc#0": (1.0, 9.0, 129.08),
        "Normal_Videos_003_x264#enc#1": (2.0, 4.0, 129.08),
    },
}
"""Start, end and length of the video of each caption of benchmarks of untrimmed videos."""
