"""texts.py - sentences of the report that do not depend on a run."""

CONFOUNDERS = [
    ("Other weights, samples or rates", "Every row begins with the same file of weights and takes "
     "the same samples in the same order with the same learning rates; hashes are compared, and "
     "peers read the places of the samples from a file that gpt2 wrote."),
    ("Batch or tokens that grow with the ranks", "The batch is global and fixed; a number of ranks "
     "that does not divide it is refused."),
    ("Loss as the only witness", "AdamW hides gradients that are too large by a constant. Norms are "
     "gates, and rows of the exact class must have the bytes of dps' weights and moments."),
    ("A library that sums where an average was asked for", "gloo does so in some versions. The "
     "peers' script asks it first and divides by what it finds; the norms show either."),
    ("Clipping that races the reduction, or clips by a rank's own norm", "Norms are those of the "
     "averaged gradients, equal on all ranks."),
    ("A norm that its library computes loosely", "PyTorch's clip_grad_norm_ adds squares of a tensor "
     "in fp32; on a CPU it loses 0.1 to 0.3 % of a large embedding's. Norms of PyTorch's rows are "
     "computed in fp64 from the same gradients, outside of what is timed. It clips by its own."),
    ("Start-up, first steps and logging in the mean", "A step is timed alone. The first steps of a "
     "run are left out of every median; losses are asked for outside of what is timed."),
    ("A warm file cache for the second row", "Nothing is read from a disk while a step is timed."),
    ("A rate that was tuned for one side", "LAMB and AdamW take every rate of one grid at the same "
     "large batch, with the same seeds, and are compared at the best rate of each. All other rows "
     "have AdamW's one rate, which was not tuned for any of them."),
    ("Steps that are not yet what a row stands for", "Rows that compress gradients send them as they "
     "are at first; these steps count in their losses and not in their speeds."),
    ("Drift of the machine", "Rows run in turns, every second turn backwards, and ratios are taken "
     "within a turn. Medians are over the turns, each with a seed of its own."),
    ("Another number of threads", "Each rank, ours and the peers', has as many threads; the products' "
     "library is named in the table of machines."),
    ("Speed without a result", "A row that fails a gate, or was not long enough for "
     "its verdict, has no speed here."),
    ("16 bits on the wire beside 32", "All rows send 32-bit gradients, but those whose point is not "
     "to."),
    ("Utilisation as if it were work", "A rank that polls is busy. Utilisation stands beside "
     "throughput, never for it."),
    ("Memory counted twice", "Ranks of a node share arenas, which RSS counts once for each rank. "
     "PSS counts each page once."),
    ("Loss over time on memorised data", "The data are longer than a run, so no sample is seen "
     "twice."),
    ("Highest throughput per device of one device", "True by definition: efficiency is drawn "
     "against the line through one process."),
]

LIMITS = [
    "Ranks of one machine share its memory and cores: exchange there costs what copying costs, and "
    "hides behind nothing, as no core is idle.",
    "A small model on a processor stands for larger ones only through R, the ratio of compute time to "
    "the time of a dense all-reduce.",
    "Rates above 1 Gb/s are EMULATED on a machine of a few cores: the line that was measured is "
    "printed, and decides.",
    "Losses of a few hundred steps say that two rows compute alike, not which one generalises "
    "better.",
]

CLASSES = {
    "exact": "same bytes as dps with as many ranks",
    "close": "same sums in another order: losses within 1e-5, norms within 1e-4 over 10 steps",
    "curve": "other arithmetic: the loss may end no more than 2 % above dps', nor beyond twice the "
             "spread of seeds",
    "tuned": "another optimizer: the same, at a large batch, each with the best rate of one grid",
}

GATES = ("Numbers of ranks with which all gates of a study hold. Studies <i>ranks</i> and <i>nodes</i> "
         "(4 ranks on two nodes) are short and of a small model; <i>bytes</i> has a node for each "
         "rank; <i>large</i> is the grid of rates.")

REACH = ("R is compute time over the time of a dense all-reduce that nothing hides. Where it is far "
         "above 1, the all-reduce fits under backward and every strategy is as fast as its compute; "
         "where it is below 1, bytes decide. It places a run beside others by what matters to a "
         "strategy, not by names of machines.")

