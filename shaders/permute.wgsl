// Copies elements to another order of dimensions (src/ops/permute.rs). One thread per {{ type }} of the result: its
// position along the line gives its index in each of the {{ rank }} dimensions, and those its place in x.
{% include "common" %}

struct Params {
    len: u32,
    {% for d in range(rank) %}
    size{{ d }}: u32, stride{{ d }}: u32,
    {% endfor %}
}
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<{{ type }}>;
@group(0) @binding(1) var<storage, read_write> result: array<{{ type }}>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i >= p.len) { return; }
    var rest = i;
    var place = 0u;
    {% for d in range(rank)|reverse %}
    place += rest % p.size{{ d }} * p.stride{{ d }};
    rest /= p.size{{ d }};
    {% endfor %}
    result[i] = x[place];
}
