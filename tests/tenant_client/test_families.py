"""One message each of the libraries, launchers and schedulers that a job's output holds, as they print it.

What is right was written down before the table was asked. `symptom` stands where the words name no cause.
"""

from pathlib import Path

import pytest

from tenant_client.diagnosis.diagnose import diagnose, gather

FAMILIES = [
    # CUDA, ROCm, NCCL
    ("gpu_out_of_memory", "torch.distributed.DistBackendError: NCCL error in: a.cpp:7,\nunhandled cuda error, NCCL version 2.27.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"),
    ("driver_mismatch", "torch.distributed.DistBackendError: NCCL error in: a.cpp:7, unhandled cuda error, NCCL version 2.27.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'CUDA driver version is insufficient for CUDA runtime version'"),
    ("cuda_error", "[rank3]: RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
    ("cuda_error", "RuntimeError: No HIP GPUs are available"),
    ("cuda_error", "jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed."),
    ("cuda_error", "[rank7]: GPU device may be out of range, do you have enough GPUs?\n[rank7]: CUDA kernel errors might be asynchronously reported at some other API call"),
    ("illegal_memory_access", "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"),
    ("gpu_page_fault", ":0:rocdevice.cpp:3005: Callback: Queue 0x7f1b aborting with error : HSA_STATUS_ERROR_MEMORY_FAULT: Agent attempted to access an inaccessible address. code: 0x2b"),
    ("device_lost", "Unable to determine the device handle for GPU2: 0000:9B:00.0: Unknown Error"),
    ("gpu_out_of_memory", "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.25GiB on device ordinal 0"),
    ("gpu_out_of_memory", "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,512,512] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"),
    ("host_out_of_memory", "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,512,512] and type float on /job:localhost/device:CPU:0 by allocator cpu"),
    ("symptom", "[rank0]: ncclInternalError: Internal check failed.\n[rank0]: Last error:\n[rank0]: Bootstrap : no socket interface found"),
    ("network_error", "[rank9]: torch.distributed.DistBackendError: NCCL error in: a.cpp:7, unhandled system error, NCCL version 2.28.9\n[rank9]: ncclSystemError: System call failed.\n[rank9]: Last error:\n[rank9]: Call to ibv_reg_mr failed with error Cannot allocate memory"),
    ("symptom", "[1700000000.1] [gpu-a:4711 :0]  ib_mlx5_log.c:171  UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB (synd 0x15)"),
    # memory of the host
    ("host_out_of_memory", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ("host_out_of_memory", "(raylet) 3 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons"),
    ("host_out_of_memory", "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 171798691840 bytes."),
    ("host_out_of_memory", "terminate called after throwing an instance of 'c10::Error'\n  what():  [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ("host_out_of_memory", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137."),
    ("host_out_of_memory", "=>> PBS: job killed: mem 67109152kb exceeded limit 67108864kb"),
    ("host_out_of_memory", "trainer-0   0/1     OOMKilled   0          41m"),
    # crashes
    ("segmentation_fault", "[gpu-a:4711 :0:4711] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)"),
    ("segmentation_fault", "#17  0xffffffffffffffff in ???\nsrun: error: gpu-a: task 0: Exited with exit code 139"),
    ("segmentation_fault", "mpirun noticed that process rank 3 with PID 4711 on node gpu-a exited on signal 11 (Segmentation fault)."),
    ("segmentation_fault", "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV"),
    ("segmentation_fault", "[ 8812.114] python3[48213]: segfault at 8 ip 00007f2a sp 00007ffd error 4 in libtorch_cpu.so"),
    ("killed", "[2025-03-02 04:05:06,117] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -9"),
    ("killed", "mpirun noticed that process rank 0 with PID 0 on node gpu-a exited on signal 9 (Killed)."),
    ("runtime_error", "free(): invalid pointer\nAborted (core dumped)"),
    ("runtime_error", "thread 'main' panicked at src/loader.rs:88:17:\ncalled `Option::unwrap()` on a `None` value"),
    ("runtime_error", "pyo3_runtime.PanicException: range end index 9 out of range for slice of length 4"),
    ("assertion_error", "F0302 04:05:06.117 4711 tensor_shape.cc:187] Check failed: size >= 0 (-1 vs. 0)"),
    ("assertion_error", "python: ../src/ring.cc:88: int push(int): Assertion `head != tail' failed.\nAborted (core dumped)"),
    # exceptions that wrap, wrap lines, or write at once
    ("key_error", "hydra.errors.InstantiationException: Error in call to target 'train.data.Loader':\nKeyError('split')"),
    ("type_error", "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nTypeError: unhashable type: 'dict'"),
    ("called_process_error", "torch._inductor.exc.InductorError: CalledProcessError: Command '['/usr/bin/gcc', 'main.c']' returned non-zero exit status 1."),
    ("value_error", "ValueErrorValueError: : bad splitbad split"),
    ("attribute_error", '[gpu-a:0]  File "train.py", line 3, in <module>\n[gpu-a:1]  File "train.py", line 3, in <module>\n[gpu-a:0]    x.go()\n[gpu-a:1]    x.go()\n[gpu-a:0]AttributeError: no go\n[gpu-a:1]AttributeError: no go'),
    ("key_error", '{"log":"    mode = MODES[name]\\n","stream":"stderr","time":"2025-03-02T04:05:06Z"}\n{"log":"KeyError: \'bf17\'\\n","stream":"stderr","time":"2025-03-02T04:05:06Z"}'),
    ("value_error", '{"asctime": "2025-03-02", "levelname": "ERROR", "message": "step failed", "exc_info": "Traceback (most recent call last):\\n  File \\"train.py\\", line 3, in <module>\\n    go()\\nValueError: bad split"}'),
    ("index_error", "2025-03-02T04:05:06.7Z stderr F Traceback (most recent call last):\n2025-03-02T04:05:06.7Z stderr F   File \"t.py\", line 3, in <module>\n2025-03-02T04:05:06.7Z stderr F IndexError: list index out of range"),
    ("runtime_error", "[rank0]:     return F.conv2d(\n[rank0]: RuntimeError: Input type (float) and bias type (c10::Half) should be the same\nwandb: \nwandb: View run x at: y\nwandb: Find logs at: z\nSending process 4711 closing signal SIGTERM\nSending process 4712 closing signal SIGTERM\na\nb"),
    # XLA, TensorFlow, JAX
    ("runtime_error", "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel"),
    ("rendezvous_timeout", "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect"),
    ("type_error", "jax.errors.TracerArrayConversionError: The numpy.ndarray conversion method was called on traced array"),
    ("model_loading_error", "tensorflow.python.framework.errors_impl.NotFoundError: Key dense/kernel not found in checkpoint"),
    ("import_error", "tensorflow.python.framework.errors_impl.NotFoundError: /opt/ops/libcustom.so: undefined symbol: _ZN10tensorflow8OpKernel"),
    # storage
    ("disk_full", "tee: run.log: Disk quota exceeded"),
    ("disk_full", "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: \"No space left on device\" })"),
    ("os_error", "LustreError: 11-0: scratch-OST0003-osc-ffff88: operation ost_write to node 10.1.0.9@o2ib failed: rc = -107"),
    ("os_error", "cp: cannot stat '/scratch/ckpt/step_900.pt': Transport endpoint is not connected"),
    ("os_error", "bash: run.log: Read-only file system"),
    ("s3_storage_error", "google.cloud.exceptions.Forbidden: 403 GET https://storage.googleapis.com/storage/v1/b/corpus"),
    ("connection_error", "google.api_core.exceptions.ServiceUnavailable: 503 failed to connect to all addresses"),
    ("model_loading_error", "OSError: acme/tiny is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'"),
    ("model_loading_error", "OSError: acme/tiny does not appear to have a file named config.json."),
    ("model_loading_error", "RuntimeError: unable to open file </cache/acme/model.safetensors> in read-only mode: No such file or directory (2)\nLoading checkpoint shards: 100%|██| 2/2 [00:03<00:00,  1.8s/it]"),
    ("dataset_loading_error", "PIL.UnidentifiedImageError: cannot identify image file '/data/0017.jpg'"),
    ("dataset_loading_error", "tarfile.ReadError: unexpected end of data"),
    # launchers, shells, schedulers
    ("os_error", "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."),
    ("os_error", "The server socket has failed to bind to 0.0.0.0:29500 (errno: 98 - Address already in use).\nsrun: error: gpu-a: task 1: Exited with exit code 1\nslurmstepd: error: *** STEP 81.0 ON gpu-a CANCELLED AT 2025-03-02T04:05:06 ***"),
    ("os_error", "FileExistsError: [Errno 17] File exists: '/data/cache/7'\nsrun: error: gpu-a: task 3: Exited with exit code 1\nslurmstepd: error: *** STEP 81.0 ON gpu-a CANCELLED AT 2025-03-02T04:05:06 ***"),
    ("connection_error", "[E302 04:05:06.1 socket.cpp:1028] [c10d] The client socket has timed out after 600000ms while trying to connect to (10.0.0.7, 48315)."),
    ("connection_error", "ssh: connect to host gpu-b port 22: Connection timed out"),
    ("syntax_error", "/var/spool/slurmd/job81/slurm_script: line 31: syntax error near unexpected token `fi'"),
    ("import_error", "python: symbol lookup error: /opt/lib/libnccl.so.2: undefined symbol: ncclMemAlloc"),
    ("import_error", "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found"),
    ("argument_error", "FATAL Flags parsing error: Unknown command line flag 'lr_schedul'"),
    ("permission_error", "mkdir: cannot create directory '/data/run': Permission denied"),
    ("file_not_found_error", "Error: could not open vocab.json: No such file or directory"),
    ("evicted", "trainer-0   0/1     Evicted   0          3h"),
    ("preempted", "Normal  Preempted  12s  default-scheduler  Preempted by a pod on node gpu-7"),
    ("time_limit", "Job was active longer than specified deadline"),
    ("cancelled", "TERM_OWNER: job killed by owner."),
    ("cancelled", 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\nKeyboardInterrupt'),
    # a loss that is no number, to the end
    ("nan_loss", "epoch 3 train_loss: 0.81\nepoch 4 train_loss: nan\nepoch 5 train_loss: nan"),
    ("nan_loss", "{'loss': nan, 'grad_norm': nan, 'epoch': 0.1}\n{'loss': nan, 'grad_norm': nan, 'epoch': 0.2}"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "text"), FAMILIES, ids=[f"{n}-{right}" for n, (right, _) in enumerate(FAMILIES)])
def test_each_family_names_its_reason(right: str, text: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"loading\n{text}\n", encoding="utf-8")
    found = diagnose(gather([log]).evidence)
    if right == "symptom":
        assert found.root is not None
        assert found.root.role.value == "symptom"
    else:
        assert found.reason == right


NO_CAUSE = [
    "epoch 3 train_loss: 0.81\nepoch 3 val_loss: nan\nepoch 4 train_loss: 0.80\nepoch 4 accuracy: 0.61",
    "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29500; it will retry",
    "Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory",
    "WARNING: failed to read the cache: No such file or directory",
    "curl: (28) it took long\niteration 7 loss 2.0",
    "exits with return code = 1",
    "srun: error: gpu-a: task 0: Exited with exit code 1",
    "Process 4711 exited with code 0",
    "the 11th signal: 11 dB\nsignal strength -9",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
    "RuntimeError: Worker failed with error '[a/gloo/transport/tcp/pair.cc:547]\n  Connection closed by peer [10.0.0.1]:17280'",
    "terminate called after throwing an instance of 'c10::DistBackendError'\nncclRemoteError: a process exited\n[gpu-a:1 :0:98] Caught signal 11 (Segmentation fault)",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_CAUSE)
def test_words_that_name_no_cause_are_given_none(text: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"loading\n{text}\n", encoding="utf-8")
    found = diagnose(gather([log]).evidence)
    assert found.root is None or found.root.role.value != "root" or found.reason == "unknown", found.sentence


def test_what_a_job_went_on_after_is_no_last_word(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("tee: run.log: Disk quota exceeded\niteration 7 loss 2.0\n", encoding="utf-8")
    assert diagnose(gather([log]).evidence).root is None
