"""Train a retriever with a plain loop of PyTorch: model, losses, data and metrics of prvr, and no trainer.

The corpus is made on the first run, without a download. It is tiny: a model soon knows its 60 training videos and
learns little about the 20 others, for which `toy-demo` or a public corpus is needed.
"""

import torch

import prvr
from prvr.data import VideoLoader
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.training import open_splits

EPOCHS = 10

torch.manual_seed(0)
torch.set_num_threads(1)
config = prvr.load_config("gmmformer-toy", {"data.collection": "toy-tiny", "model.hidden": 64})
splits = open_splits(config)
loader = VideoLoader(splits.train, batch_size=20, seed=0)

retriever = prvr.Retriever(config.model)
objective = prvr.Objective(config.loss, config.model, retriever.registers)
parameters = [*retriever.parameters(), *objective.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=EPOCHS * len(loader))

before = evaluate(retriever, splits.train, EvaluationConfig(bootstrap=0)).text_to_video
for epoch in range(EPOCHS):
    loader.set_epoch(epoch)  # another order of the videos
    retriever.train()
    losses = []
    for batch in loader:
        terms = objective(retriever(batch), batch, negatives="random" if epoch == 0 else "hard")
        optimizer.zero_grad()
        terms["total"].backward()
        torch.nn.utils.clip_grad_norm_(parameters, max_norm=1.0)
        optimizer.step()
        schedule.step()
        losses.append(terms["total"].item())
    print(f"epoch {epoch + 1:2}: mean loss {sum(losses) / len(losses):.3f}")

print(f"{'':9} {'R@1':>6} {'R@10':>6} {'SumR':>6} {'chance':>7}")
for name, split in (("training", splits.train), ("test", splits.report)):
    report = evaluate(retriever, split, EvaluationConfig(bootstrap=0))
    found = report.text_to_video
    print(f"{name:9} {found.r1:6.1f} {found.r10:6.1f} {found.sumr:6.1f} {report.chance:7.1f}")
    if split is splits.train:
        assert found.r1 > 2 * before.r1
splits.close()
