// What both shaders of attention are told: `Attention::params` of src/ops/attention/mod.rs.
struct Params {
    time: u32,
    n_head: u32,
    batch_heads: u32,
    scale: f32,
    key: vec2<u32>,
    drop_threshold: u32,
    keep_scale: f32,
    // The queries whose dS is in memory: the first, and how many there is room for.
    slab_begin: u32,
    slab_rows: u32,
}
var<immediate> p: Params;
