{# The pixels that the workgroups of `of_part` compute, and where these read: conv.wgsl, conv_direct.wgsl. #}
    {% if pass == "forward" %}
    let k_end = params.channels * {{ taps }}u;
    let row_of_weight = k_end;
    let count_h = params.result_h;
    let count_w = params.result_w;
    let start_h = -i32(params.padding_h);
    let start_w = -i32(params.padding_w);
    let step_h = i32(params.dilation_h);
    let step_w = i32(params.dilation_w);
    let by_h = params.stride_h;
    let by_w = params.stride_w;
    {% elif strided %}
    // The pixels of one residue, and the kernel elements that reach them: every so many from the first.
    let residue_h = of_part / params.groups / params.residues_w;
    let residue_w = of_part / params.groups % params.residues_w;
    let count_h = (params.result_h - residue_h + params.stride_h - 1u) / params.stride_h;
    let count_w = (params.result_w - residue_w + params.stride_w - 1u) / params.stride_w;
    var first_h = 0u;
    while (first_h < params.kernel_h
            && first_h * params.dilation_h % params.stride_h != (residue_h + params.padding_h) % params.stride_h) {
        first_h += 1u;
    }
    var first_w = 0u;
    while (first_w < params.kernel_w
            && first_w * params.dilation_w % params.stride_w != (residue_w + params.padding_w) % params.stride_w) {
        first_w += 1u;
    }
    let taps_h = (params.kernel_h - first_h + params.every_h - 1u) / params.every_h;
    // No division by zero, where there are none.
    let taps_w = max((params.kernel_w - first_w + params.every_w - 1u) / params.every_w, 1u);
    let taps = max(taps_h * taps_w, 1u);
    let k_end = select(params.channels * taps, 0u, first_h == params.kernel_h || first_w == params.kernel_w);
    let row_of_weight = params.kernel_h * params.kernel_w;
    let start_h = (i32(residue_h + params.padding_h) - i32(first_h * params.dilation_h)) / i32(params.stride_h);
    let start_w = (i32(residue_w + params.padding_w) - i32(first_w * params.dilation_w)) / i32(params.stride_w);
    let step_h = -i32(params.every_h * params.dilation_h / params.stride_h);
    let step_w = -i32(params.every_w * params.dilation_w / params.stride_w);
    let by_h = 1u;
    let by_w = 1u;
    {% else %}
    let k_end = params.channels * {{ taps }}u;
    let row_of_weight = {{ taps }}u;
    let count_h = params.result_h;
    let count_w = params.result_w;
    let start_h = i32(params.padding_h);
    let start_w = i32(params.padding_w);
    let step_h = -i32(params.dilation_h);
    let step_w = -i32(params.dilation_w);
    let by_h = 1u;
    let by_w = 1u;
    {% endif %}
    let pixels = count_h * count_w;
    let columns = params.batch * pixels;
