//! The heads of attention.

/// Which heads there are, and how far back they look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Heads of queries.
    pub n_head: usize,
    /// Heads of keys and of values; divides `n_head`.
    pub n_kv_head: usize,
    /// The most keys that a query sees, its own included; `None` for all before it.
    pub window: Option<usize>,
}

impl Heads {
    /// As many heads of keys and values as of queries, which see all that came before (Vaswani et al. 2017).
    pub fn multi_head(n_head: usize) -> Heads {
        Heads { n_head, n_kv_head: n_head, window: None }
    }

    /// Heads of queries, keys and values together, which a row of packed qkv is made of.
    pub(crate) fn packed(self) -> Option<usize> {
        self.n_kv_head.checked_mul(2)?.checked_add(self.n_head)
    }
}
