"""Time and memory of DiffusionRet's inference: table 4 of the paper, measured on the device at hand."""

import platform
import time

import torch
import torch.nn.functional as F
from rich.table import Table

from prvr.evaluation.tables import new_table
from prvr.published.diffusionret.candidate_reranker import CandidateReranker
from prvr.published.diffusionret.run_config import RerankerConfig
from prvr.scoring import max_scores

#: Sampling steps, with seconds on one RTX 3090 for a gallery of 1,000, 3,000 and 5,000 videos.
PUBLISHED = {
    1: (59.02, 143.04, 260.67),
    3: (59.32, 144.42, 260.96),
    5: (59.55, 144.63, 261.11),
    10: (59.70, 145.97, 261.69),
    30: (60.66, 148.11, 274.49),
    50: (62.04, 151.31, 281.27),
}
#: The memory of each gallery, in MB, whatever the steps.
PUBLISHED_MEMORY = {1000: 3253, 3000: 3747, 5000: 4297}


def inference_cost(device: torch.device) -> Table:
    """Scores galleries and re-ranks 32 candidates of each query, of random embeddings, which change neither.

    As many queries as videos, of 12 frames, 512 wide; elsewhere than on a GPU a hundredth of the videos, 64 wide.

    Args:
        device: where it is measured.
    """
    on_gpu = device.type == "cuda"
    share, width = (1, 512) if on_gpu else (100, 64)
    name = torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine()
    small = "" if on_gpu else f" Here, without a GPU, small: a {share}th of the videos, {width} wide for 512."
    note = f"Published: one RTX 3090, with the features; here: scoring and re-ranking alone.{small} - is not measured."
    numbers = ["steps", "seconds", "published", "MB", "published"]
    table = new_table(f"DiffusionRet, table 4: inference on {name}", note, ["videos"], numbers)
    reranker = CandidateReranker(RerankerConfig(width=width, attention_temperature=0.1)).to(device).eval()
    for i, (videos, memory) in enumerate(PUBLISHED_MEMORY.items()):
        count = videos // share
        text = F.normalize(torch.randn(count, width, device=device), dim=-1)
        frames = F.normalize(torch.randn(count, 12, width, device=device), dim=-1)
        mask = torch.ones(count, 12, dtype=torch.bool, device=device)
        for number, steps in enumerate((1, *PUBLISHED)):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(device)
            start = time.perf_counter()
            with torch.no_grad():
                scores = max_scores(text, frames, mask, dots=False, unit=True)[0]
                best = reranker.rerank(scores, text, frames, mask, num_steps=steps).amax(1)
            best.cpu()  # waits for the device
            seconds = time.perf_counter() - start
            used = f"{torch.cuda.max_memory_allocated(device) / 1e6:,.0f}" if on_gpu else "-"
            if number:  # the first one warmed up
                times = f"{seconds:.3f}", f"{PUBLISHED[steps][i]:.2f}"
                table.add_row(
                    f"{videos:,}" if on_gpu else f"{count} of {videos:,}", str(steps), *times, used, f"{memory:,}"
                )
    return table
