"""What is measured. A workload is a module with cases(settings), which yields its rows to be
measured one by one, and PROGRAMS, the C++ programs that they need."""

from workloads import (big_model, checkpoint, ddp, headers, launch, loader, loop, memory, nonfinite_cost, offload, paging, startup,
                       step, tail, waits, warning_cost)

# In the order of the table.
ALL = {"tail": tail, "step": step, "loop": loop, "waits": waits, "warnings": warning_cost,
       "nonfinite": nonfinite_cost, "memory": memory, "offload": offload, "big_model": big_model,
       "paging": paging, "loader": loader, "checkpoint": checkpoint,
       "startup": startup, "launch": launch, "ddp": ddp, "compile": headers}
