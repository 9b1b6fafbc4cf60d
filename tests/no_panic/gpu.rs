//! A GPU, below tensors. On the CPU there is nothing to call: a row is as it should be.

use super::{Defined, HUGE, LARGE, Refused, Row};
use rustyflow::gpu::{
    AdapterChoice, Gpu, Launch, Limits, Operand, Plan, Shader, buffer, check_launch, grid, param, source_of, translate,
};
use rustyflow::profile::{Cost, MemoryKind};
use rustyflow::{Device, Error, Result, Tensor};
use std::sync::atomic::AtomicBool;

fn defined(device: &Device, call: fn(&Gpu) -> Result<()>) -> Result<()> {
    if let Device::Gpu(gpu) = device { call(gpu) } else { Ok(()) }
}

fn refused(device: &Device, call: fn(&Gpu) -> Result<()>) -> Result<()> {
    if let Device::Gpu(gpu) = device { call(gpu) } else { Err(Error::Invalid("no GPU".into())) }
}

/// y = x.
fn copy(source: &'static str) -> Launch {
    let shader = Shader::checked("copy_of_no_panic", source);
    let buffers = vec![buffer("x", "f32", Operand::Input(0)), buffer("y", "f32", Operand::Output(0))];
    Launch { shader, values: Vec::new(), buffers, params: vec![param("len", 1u32)], workgroups: 1 }
}

const COPY: &str = "{{ interface }}\n{{ for_each(1) }}\ny[i] = x[i];\n}";

pub fn rows() -> Vec<Row> {
    vec![
        ("Gpu::open", Refused, |_| Gpu::open(&AdapterChoice { index: Some(HUGE), ..Default::default() }).map(drop)),
        ("Gpu::same", Defined, |d| {
            defined(d, |gpu| {
                assert!(gpu.same(&gpu.clone()));
                Ok(())
            })
        }),
        ("Gpu::alloc", Refused, |d| refused(d, |gpu| gpu.alloc(HUGE, MemoryKind::Other).map(drop))),
        ("Gpu::alloc", Refused, |d| refused(d, |gpu| gpu.alloc(LARGE, MemoryKind::Other).map(drop))),
        ("Gpu::upload", Refused, |d| refused(d, |gpu| gpu.upload(&gpu.alloc(8, MemoryKind::Other)?, &[&[1; 7]]))),
        ("Gpu::upload", Defined, |d| defined(d, |gpu| gpu.upload(&gpu.alloc(0, MemoryKind::Other)?, &[]))),
        ("Gpu::fill_zero", Defined, |d| {
            defined(d, |gpu| {
                gpu.fill_zero(&gpu.alloc(0, MemoryKind::Other)?);
                gpu.synchronize()
            })
        }),
        ("Gpu::download", Defined, |d| {
            defined(d, |gpu| {
                let slice = gpu.alloc(3, MemoryKind::Other)?;
                gpu.upload(&slice, &[&[1, 2], &[3]])?;
                assert_eq!(gpu.download(&slice)?, [1, 2, 3]);
                Ok(())
            })
        }),
        ("Gpu::download_later", Defined, |d| {
            defined(d, |gpu| {
                assert!(gpu.download_later(&gpu.alloc(0, MemoryKind::Other)?)?.wait()?.is_empty());
                Ok(())
            })
        }),
        ("Gpu::precompile", Defined, |d| {
            defined(d, |gpu| {
                let (before, launch) = (gpu.compiled(), copy(COPY));
                let empty = Launch { workgroups: 0, values: vec![("unused", 1u32.into())], ..launch.clone() };
                gpu.precompile(&[], &AtomicBool::new(false));
                gpu.precompile(std::slice::from_ref(&launch), &AtomicBool::new(true));
                assert_eq!(gpu.compiled(), before, "nothing to do, or stopped");
                gpu.precompile(&[launch.clone(), launch, empty], &AtomicBool::new(false));
                assert_eq!(gpu.compiled(), before + 1);
                Ok(())
            })
        }),
        ("Gpu::run", Defined, |d| defined(d, |gpu| gpu.run("nothing", Cost::default(), Plan::default(), &[], &[]))),
        ("Gpu::run", Refused, |d| {
            refused(d, |gpu| gpu.run("unbound", Cost::default(), Plan::one(copy(COPY)), &[], &[]))
        }),
        ("Gpu::run", Refused, |d| {
            refused(d, |gpu| {
                let plan = Plan { scratch: vec![HUGE], launches: Vec::new() };
                gpu.run("too large", Cost::default(), plan, &[], &[])
            })
        }),
        ("Gpu::throttle", Defined, |d| defined(d, |gpu| gpu.throttle(0).and_then(|()| gpu.throttle(HUGE)))),
        ("Gpu::time_kernels", Defined, |d| {
            defined(d, |gpu| {
                gpu.time_kernels(true);
                gpu.time_kernels(false);
                gpu.synchronize()
            })
        }),
        // Throughputs of no tile, and of fewer than there are.
        ("Gpu::with_matmul_throughput", Defined, |d| {
            defined(d, |gpu| {
                for measured in [Vec::new(), vec![[0; 4]]] {
                    let gpu = Device::Gpu(gpu.clone().with_matmul_throughput(measured.into()));
                    let x = Tensor::full(1.0, [70, 70], &gpu)?;
                    assert_eq!(x.matmul(&x)?.to_f32()?[0], 70.0);
                }
                Ok(())
            })
        }),
        ("Gpu::with_split_fp16", Defined, |d| {
            defined(d, |gpu| {
                let gpu = Device::Gpu(gpu.clone().with_split_fp16(true));
                let x = Tensor::full(1.0, [70, 70], &gpu)?;
                assert_eq!(x.matmul(&x)?.to_f32()?[0], 70.0);
                Ok(())
            })
        }),
        ("GpuSlice::overlaps", Defined, |d| {
            defined(d, |gpu| {
                let [a, b] = [gpu.alloc(0, MemoryKind::Other)?, gpu.alloc(0, MemoryKind::Other)?];
                assert!(!a.overlaps(&b));
                Ok(())
            })
        }),
        ("Plan::one", Defined, |_| {
            assert_eq!(Plan::one(copy("")).launches.len(), 1);
            Ok(())
        }),
        ("buffer", Defined, |_| {
            assert!(buffer("", "", Operand::Scratch(HUGE)).name.is_empty());
            Ok(())
        }),
        ("param", Defined, |_| {
            assert!(f32::from_bits(param("", f32::NAN).bits).is_nan() && param("", HUGE).bits == u32::MAX);
            Ok(())
        }),
        ("grid", Defined, |_| {
            assert_eq!(grid(0), [0, 1]);
            grid(HUGE);
            Ok(())
        }),
        ("source_of", Defined, |_| {
            assert!(source_of(&copy(COPY), &Limits::WEBGPU_DEFAULT).is_ok_and(|wgsl| wgsl.contains("y[i] = x[i]")));
            assert!(source_of(&copy("{% nonsense %}"), &Limits::WEBGPU_DEFAULT).is_err());
            Ok(())
        }),
        ("check_launch", Refused, |_| {
            check_launch("copy", &copy("{{ interface }} what is no WGSL"), &Limits::WEBGPU_DEFAULT)
        }),
        ("translate", Refused, |_| {
            let other_name = Launch { buffers: Vec::new(), ..copy(COPY) };
            translate(&other_name, &Limits::WEBGPU_DEFAULT).map_err(Error::Invalid)
        }),
    ]
}
