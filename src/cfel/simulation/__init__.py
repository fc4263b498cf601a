"""Virtual time: an experiment run in one process, devices' seconds and joules counted, not waited for.

`loop` is the round loop with its run directory, `executors` where devices' work is done, `state` what a run
carries from round to round, `buffered` edge rounds that do not wait for all devices, `parameters` the
experiment file's `[simulation]`.
"""
