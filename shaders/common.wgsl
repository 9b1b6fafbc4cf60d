// Workgroups are launched as a grid of x by y because no dimension may exceed 65,535; this is the number along the line.
fn workgroup_number(id: vec3<u32>, count: vec3<u32>) -> u32 {
    return id.y * count.x + id.x;
}
