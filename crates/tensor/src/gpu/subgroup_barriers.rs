//! Makes subgroup barriers order workgroup memory on Vulkan.
//!
//! The kernels on cooperative matrices exchange values through workgroup memory within a subgroup. naga translates
//! their `subgroupBarrier()` to a barrier of "subgroup memory", a storage class that Vulkan does not have: it orders
//! nothing there, and is not valid SPIR-V (VUID-StandaloneSpirv-MemorySemantics-10870). In naga's representation a
//! barrier may name workgroup memory too, which becomes what GLSL's `subgroupBarrier()` is: the subgroup's threads wait
//! for each other, not for those of the workgroup, and see what was written to workgroup memory. Metal's
//! `simdgroup_barrier` is that already; there the WGSL is left as it is.

use naga::front::wgsl::{ParseError, parse_str};
use naga::{Barrier, Block, Module, Statement};

/// Their name in WGSL.
pub(super) const SUBGROUP_BARRIER: &str = "subgroupBarrier";

/// Parses WGSL whose subgroup barriers order workgroup memory.
///
/// # Errors
/// naga's, if it is not WGSL.
pub(super) fn parse(source: &str) -> Result<Module, ParseError> {
    let mut module = parse_str(source)?;
    order_workgroup_memory(&mut module);
    Ok(module)
}

/// Makes every subgroup barrier one of workgroup memory.
pub(super) fn order_workgroup_memory(module: &mut Module) {
    module.functions.iter_mut().for_each(|(_, function)| in_block(&mut function.body));
    module.entry_points.iter_mut().for_each(|entry| in_block(&mut entry.function.body));
}

fn in_block(block: &mut Block) {
    for statement in block.iter_mut() {
        match statement {
            Statement::ControlBarrier(barrier) if barrier.contains(Barrier::SUB_GROUP) => {
                *barrier |= Barrier::WORK_GROUP;
            }
            Statement::Block(block) => in_block(block),
            Statement::If { accept, reject, .. } => [accept, reject].into_iter().for_each(in_block),
            Statement::Switch { cases, .. } => cases.iter_mut().for_each(|case| in_block(&mut case.body)),
            Statement::Loop { body, continuing, .. } => [body, continuing].into_iter().for_each(in_block),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subgroup_barriers_order_workgroup_memory_wherever_they_are() {
        let source = "
            fn exchange() { subgroupBarrier(); }
            @compute @workgroup_size(32)
            fn main(@builtin(num_workgroups) groups: vec3<u32>) {
                exchange();
                if (groups.x > 1u) { subgroupBarrier(); } else { subgroupBarrier(); }
                switch groups.y { case 1u: { subgroupBarrier(); } default: { { subgroupBarrier(); } } }
                loop { subgroupBarrier(); continuing { subgroupBarrier(); break if groups.z > 1u; } }
                workgroupBarrier();
            }";
        let text = format!("{:?}", parse(source).unwrap());
        let count = |flags: &str| text.matches(&format!("ControlBarrier(Barrier({flags}))")).count();
        assert_eq!([count("WORK_GROUP | SUB_GROUP"), count("SUB_GROUP"), count("WORK_GROUP")], [7, 0, 1], "{text}");
    }
}
