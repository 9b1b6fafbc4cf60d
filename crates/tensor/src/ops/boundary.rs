//! Invalid operands: every public op returns an error and never panics. A row of the table has valid operands, from
//! which invalid ones are derived: each operand with every other type, with another rank, longer or empty in each
//! dimension, and on another device. Variants that an op accepts by design are listed in its row.

mod arguments;
mod operands;

use super::random::Key;
use super::*;
use crate::Device;
use crate::gpu::{AdapterChoice, Gpu};
use crate::tensor::{Edge, no_grad};
use arguments::other_arguments;
use operands::rows;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Apply = dyn Fn(&[Tensor]) -> Result<Tensor>;

struct Row {
    op: &'static str,
    operands: Vec<Spec>,
    /// Accepted variants, separated by commas.
    valid: &'static str,
    apply: Box<Apply>,
}

fn f32(shape: &[usize]) -> Spec {
    Spec::new(shape, DType::F32)
}

fn f16(shape: &[usize]) -> Spec {
    Spec::new(shape, DType::F16)
}

fn u32(shape: &[usize]) -> Spec {
    Spec::new(shape, DType::U32)
}

fn row(
    op: &'static str,
    operands: &[Spec],
    valid: &'static str,
    apply: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Row {
    Row { op, operands: operands.to_vec(), valid, apply: Box::new(apply) }
}

const KEY: Key = Key { words: [1, 2], slice_start: 0 };
const GROUPED: Heads = Heads { n_head: 2, n_kv_head: 1, window: None };
const CONV: ConvOptions = ConvOptions { stride: [2, 1], padding: [1, 0], dilation: [1, 2], groups: 2 };

/// Operands, one of which differs from the row's.
struct Variant {
    name: String,
    operands: Vec<Spec>,
    /// The operand to move to another device.
    moved: Option<usize>,
}

fn variants(row: &Row) -> Vec<Variant> {
    let mut all = Vec::new();
    for (i, spec) in row.operands.iter().enumerate() {
        let mut push = |what: String, other: Spec| {
            let mut operands = row.operands.clone();
            operands[i] = other;
            all.push(Variant { name: format!("{i} {what}"), operands, moved: None });
        };
        for dtype in [DType::F32, DType::F16, DType::U32].into_iter().filter(|dtype| *dtype != spec.dtype) {
            push(dtype.name().into(), Spec::new(spec.shape.clone(), dtype));
        }
        let mut shape = |what: String, shape: Vec<usize>| push(what, Spec::new(shape, spec.dtype));
        shape("rank+1".into(), [&[1], &spec.shape[..]].concat());
        shape("rank-1".into(), spec.shape[1..].to_vec());
        shape("scalar".into(), vec![]);
        for dim in 0..spec.shape.len() {
            for (what, len) in [("+1", spec.shape[dim] + 1), ("=0", 0)] {
                let mut dims = spec.shape.to_vec();
                dims[dim] = len;
                shape(format!("dim{dim}{what}"), dims);
            }
        }
        if row.operands.len() > 1 {
            all.push(Variant { name: format!("{i} device"), operands: row.operands.clone(), moved: Some(i) });
        }
    }
    all
}

/// The op's error, or whether the result could be computed, read and differentiated.
type Outcome = std::thread::Result<std::result::Result<Result<()>, Error>>;

fn outcome(row: &Row, variant: &Variant, device: &Device, other: &Device) -> Outcome {
    let operand = |(i, spec): (usize, &Spec)| {
        let device = if variant.moved == Some(i) { other } else { device };
        let zeros = Tensor::zeros(spec.shape.clone(), spec.dtype, device)?;
        if spec.dtype == DType::U32 { Ok(zeros) } else { zeros.requires_grad() }
    };
    let apply = || {
        let operands = variant.operands.iter().enumerate().map(operand).collect::<Result<Vec<Tensor>>>()?;
        Ok(((row.apply)(&operands)?, operands))
    };
    let differentiate = |y: &Tensor, operands: &[Tensor]| {
        y.to_bytes()?;
        if matches!(y.edge(), Edge::Node(..)) {
            y.backward_with(&Tensor::zeros(y.shape().clone(), y.dtype(), device)?)?;
        }
        operands.iter().filter_map(Tensor::grad).try_for_each(|gradient| gradient.to_bytes().map(drop))
    };
    catch_unwind(AssertUnwindSafe(|| apply().map(|(y, operands)| differentiate(&y, &operands))))
}

/// Whether an error reports invalid operands rather than an internal failure.
fn refuses(error: &Error) -> bool {
    matches!(error, Error::Shape { .. } | Error::DType { .. } | Error::DeviceMismatch { .. } | Error::Invalid(_))
}

/// The test devices, and a second GPU with WebGPU's default limits, so without f16.
fn devices() -> Vec<Device> {
    let mut devices = Device::for_tests();
    if devices.iter().any(Device::is_gpu) {
        let choice = AdapterChoice { allow_software: true, default_limits: true, ..AdapterChoice::default() };
        devices.push(Device::Gpu(Gpu::open(&choice).unwrap()));
    }
    devices
}

/// The failure message, if any, for a variant that must be accepted, must be refused, or may be either (`None`).
fn complaint(outcome: &Outcome, accept: Option<bool>, f16: bool) -> Option<String> {
    match outcome {
        Err(_) => Some("panics".into()),
        Ok(Err(Error::GpuLimit { .. })) if !f16 => None,
        Ok(Err(error)) if !refuses(error) => Some(format!("is no error of operands: {error}")),
        Ok(Err(error)) if accept == Some(true) => Some(format!("is refused: {error}")),
        Ok(Ok(_)) if accept == Some(false) => Some("is accepted".into()),
        Ok(Ok(Err(error))) => Some(format!("is accepted, but cannot be computed: {error}")),
        Ok(_) => None,
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn every_op_refuses_operands_that_do_not_fit() {
    let devices = devices();
    let mut failures = Vec::new();
    for row in rows() {
        let as_it_is = Variant { name: "as it is".into(), operands: row.operands.clone(), moved: None };
        let valid: Vec<&str> = row.valid.split(", ").filter(|name| !name.is_empty()).chain(["as it is"]).collect();
        let all: Vec<Variant> = variants(&row).into_iter().chain([as_it_is]).collect();
        let unknown = valid.iter().filter(|name| !all.iter().any(|variant| variant.name == **name));
        failures.extend(unknown.map(|name| format!("{}: no variant {name}", row.op)));
        for variant in all {
            let accept = if variant.name.ends_with("=0") { None } else { Some(valid.contains(&&*variant.name)) };
            let mut accepted = Vec::new();
            for (i, device) in devices.iter().enumerate() {
                // One that has f16, if another has.
                let other = &devices[if i > 0 { i - 1 } else { devices.len().min(2) - 1 }];
                if variant.moved.is_some() && other.same(device) {
                    continue;
                }
                let f16 = !device.is_gpu() || device.has_f16();
                let outcome = outcome(&row, &variant, device, other);
                let operands = variant.operands.iter().map(Spec::to_string).collect::<Vec<_>>().join(", ");
                let what = format!("{device}: {} of {operands} ({})", row.op, variant.name);
                failures.extend(complaint(&outcome, accept, f16).map(|complaint| format!("{what} {complaint}")));
                accepted.extend(f16.then_some(matches!(outcome, Ok(Ok(_)))));
            }
            if accepted.windows(2).any(|pair| pair[0] != pair[1]) {
                failures.push(format!("{} ({}): one device accepts what another refuses", row.op, variant.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_op_refuses_other_arguments_that_make_no_sense() {
    for device in Device::for_tests() {
        for (i, (op, attempt)) in other_arguments().into_iter().enumerate() {
            let outcome = catch_unwind(AssertUnwindSafe(|| attempt(&device)));
            let refused = match &outcome {
                Ok(Err(error)) => refuses(error) || matches!(error, Error::Autograd(_)),
                _ => false,
            };
            assert!(refused, "{device}: {op}, attempt {i}: {outcome:?}");
        }
    }
}

#[test]
fn a_gradient_from_another_device_is_refused() {
    let devices = devices();
    for (device, other) in devices.iter().zip(devices.iter().cycle().skip(1)).filter(|(a, b)| !a.same(b)) {
        let x = Tensor::zeros([2, 3], DType::F32, device).unwrap().requires_grad().unwrap();
        let gradient = Tensor::zeros([2, 3], DType::F32, other).unwrap();
        let outcome = x.neg().unwrap().backward_with(&gradient);
        assert!(matches!(outcome, Err(Error::DeviceMismatch { .. })), "{device}: {outcome:?}");
    }
}

/// Fallible `Tensor` methods in these sources, except those that `functions!` defines and those used only by other
/// crates of this workspace.
fn fallible_methods(folder: &std::path::Path, prefixes: &[&str], names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fallible_methods(&path, prefixes, names);
            continue;
        }
        let (mut within, mut hidden) = (false, false);
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            within = line == "impl Tensor {" || within && line != "}";
            let method = prefixes.iter().find_map(|prefix| line.trim().strip_prefix(prefix));
            let is_hidden = std::mem::replace(&mut hidden, line.trim() == "#[doc(hidden)]");
            if let Some(method) = method.filter(|_| within && !is_hidden) {
                let mut signature = method.to_string();
                while !signature.ends_with('{') {
                    signature += lines.next().expect("a body");
                }
                let name = signature.split('(').next().expect("a name").to_string();
                names.extend(signature.contains("-> Result").then_some(name));
            }
        }
    }
}

#[test]
fn every_method_that_can_fail_has_a_row() {
    let mut methods = BTreeSet::new();
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    fallible_methods(&sources.join("ops"), &["pub fn ", "pub(crate) fn "], &mut methods);
    fallible_methods(&sources.join("tensor"), &["pub fn "], &mut methods);
    let of_two = BINARY.iter().chain(COMPARISONS);
    let elementwise = UNARY.iter().map(|(name, _)| name).chain(of_two.map(|(name, _)| name));
    let elementwise = elementwise.chain(REDUCTIONS.iter().map(|(name, _)| name));
    methods.extend(elementwise.map(|name| name.to_string()));
    let of_table = rows().into_iter().map(|row| row.op);
    let tested: BTreeSet<&str> = of_table.chain(other_arguments().into_iter().map(|(op, _)| op)).collect();
    // These take nothing that could be wrong: only a device that fails makes them fail.
    let cannot_be_wrong = ["read_later", "to_bytes", "to_device"];
    let missing: Vec<_> = methods.iter().filter(|name| !tested.contains(&***name)).collect();
    assert_eq!(missing, cannot_be_wrong, "src/ops/boundary.rs has no row of these");
    let gone: Vec<_> = tested.iter().filter(|name| !methods.contains(**name)).collect();
    assert!(gone.is_empty(), "no method of tensors: {gone:?}");
}
