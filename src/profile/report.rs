//! Turns a profile into the report that ends a run.

/// One line of the table by kernel.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KernelRow {
    pub name: &'static str,
}

/// Placeholder until training exists.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Report {
    pub kernels: Vec<KernelRow>,
}
