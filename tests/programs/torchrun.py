"""What `torchrun` runs, as a script."""

from torch.distributed.run import main

main()
