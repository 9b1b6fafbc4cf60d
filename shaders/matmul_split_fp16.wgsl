    // The k loop of split-fp16 (3xFP16) emulation of an f32 GEMM (Ootomo and Yokota, "Recovering single precision
    // accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022). x * scale = high +
    // low: high holds the upper 11 bits of the significand, low the next 11. low * low is below f32 rounding and left
    // out. Tensor cores truncate when they accumulate, which shows after some hundred steps of k: they accumulate
    // {{ BK }} of k only, and those partial sums are added in f32.
    //
    // All rows of a tile share one power-of-two scale. It brings the largest magnitude of the first step, and of every
    // step that exceeds it more than twofold, to 2^13. f16 then keeps 22 bits of values down to 2^-13 of the largest;
    // smaller values have an absolute error of 2^-39 of the largest: rows a million times smaller than others keep 18
    // bits. So do results below 2^-120, because the scale must be one that f32 can undo.
    var scale_a = 0.0;
    var scale_b = 0.0;
    // Biased f32 exponents from which on a value exceeds its scale.
    var limits = vec2<u32>();
    // Undoes the scales of both operands.
    var unscale = 0.0;
    {% macro stage() %}
        {% for name, outer, wide, length, origin, edge in operands %}
        {% for l in range(loads(wide, length) | int) %}
        {
            let x = {{ name }}{{ l }} * scale_{{ name }};
            let high = high_half(x);
            {% set at = to(name, l, wide, length) %}
            tile_{{ name }}{{ at }} = vec4<f16>(high);
            low_{{ name }}{{ at }} = vec4<f16>(x - high);
        }
        {% endfor %}
        {% endfor %}
    {% endmacro %}
    // The next step's loads are in flight during the multiplications. The rare rescale stays out of the inner loop:
    // drivers would unroll it too, and instruction caches are small (docs/lab/experiments.md).
    {{ declare_loads() }}
    {{ load_tiles("0u") }}
    var step = 0u;
    loop {
        // Runs at the first step and where a later one exceeds the scale more than twofold: rare. Never twice in a
        // step, although infinity exceeds every scale.
        let searched = step;
        {% for name, outer, wide, length, origin, edge in operands %}
        // Only of finite values: infinity must not scale all others to zero.
        var finite_{{ name }} = vec4<u32>();
        {% for l in range(loads(wide, length) | int) %}
        {
            let bits = bitcast<vec4<u32>>(abs({{ name }}{{ l }}));
            finite_{{ name }} = max(finite_{{ name }}, select(vec4<u32>(), bits, bits < vec4<u32>(0x7f800000u)));
        }
        {% endfor %}
        let most_{{ name }} = subgroupMax(max(
            max(finite_{{ name }}.x, finite_{{ name }}.y),
            max(finite_{{ name }}.z, finite_{{ name }}.w),
        ));
        {% endfor %}
        if (thread % {{ subgroup }}u == 0u) { largest[subgroup_index] = vec4<u32>(most_a, most_b, 0u, 0u); }
        workgroupBarrier();
        var peaks = largest[0];
        {% for s in range(1, subgroups) %}
        peaks = max(peaks, largest[{{ s }}]);
        {% endfor %}
        // Biased exponents (+127), of which the scales are made too.
        var exponents = clamp(peaks.xy >> vec2<u32>(23u), vec2<u32>(13u), vec2<u32>(254u));
        exponents.x = max(exponents.x, 154u - min(exponents.y, 154u));
        scale_a = bitcast<f32>((267u - exponents.x) << 23u);
        scale_b = bitcast<f32>((267u - exponents.y) << 23u);
        // Infinity where the products overflow f32 by far.
        unscale = bitcast<f32>(min(exponents.x + exponents.y - 153u, 255u) << 23u);
        limits = exponents + vec2<u32>(2u);
        exceeded = vec4<u32>(0xffffffffu);
        workgroupBarrier();
        loop {
            {{ stage() }}
            {% for name, outer, wide, length, origin, edge in operands %}
            var all_{{ name }} = vec4<u32>();
            {% for l in range(loads(wide, length) | int) %}
            all_{{ name }} = max(all_{{ name }}, bitcast<vec4<u32>>(abs({{ name }}{{ l }})));
            {% endfor %}
            let largest_{{ name }} = max(
                max(all_{{ name }}.x, all_{{ name }}.y),
                max(all_{{ name }}.z, all_{{ name }}.w),
            );
            {% endfor %}
            // All threads that write this write the same value.
            if (step != searched && ((largest_a >> 23u) >= limits.x || (largest_b >> 23u) >= limits.y)) {
                exceeded.x = step;
            }
            workgroupBarrier();
            if (exceeded.x == step) { break; }
            {{ add_columns() }}
            {
                // Reloads the last step instead of branching.
                let next = min(step + 1u, steps - 1u);
                {{ load_tiles("next") }}
            }
            {% for i in range(fragments_m) %}
            {% for j in range(fragments_n) %}
            var s{{ i }}_{{ j }}: coop_mat{{ side }}x{{ side }}<f32, C>;
            {% endfor %}
            {% endfor %}
            {% for k in range(0, BK, side) %}
            {
                {% for i in range(fragments_m) %}
                {% for half, tile in [["high", "tile"], ["low", "low"]] %}
                let {{ half }}_a{{ i }} = {{ coop_load_a(tile, k, i) }};
                {% endfor %}
                {% endfor %}
                {% for j in range(fragments_n) %}
                {
                    {% for half, tile in [["high", "tile"], ["low", "low"]] %}
                    let {{ half }}_b = {{ coop_load_b(tile, k, j) }};
                    {% endfor %}
                    {% for half_a, half_b in [["low", "high"], ["high", "low"], ["high", "high"]] %}
                    {% for i in range(fragments_m) %}
                    s{{ i }}_{{ j }} = coopMultiplyAdd({{ half_a }}_a{{ i }}, {{ half_b }}_b, s{{ i }}_{{ j }});
                    {% endfor %}
                    {% endfor %}
                }
                {% endfor %}
            }
            {% endfor %}
            {% for i in range(fragments_m) %}
            {% for j in range(fragments_n) %}
            c{{ i }}_{{ j }} = c{{ i }}_{{ j }} + s{{ i }}_{{ j }} * unscale;
            {% endfor %}
            {% endfor %}
            step += 1u;
            if (step == steps) { break; }
            workgroupBarrier();
        }
        if (step == steps) { break; }
    }
