    // The loop over k for f32 operands, in three products of f16 that together are as precise as f32 (Ootomo and Yokota,
    // "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022).
    // x, times a power of two, is high + low: high has the first 11 bits, low the next 11. Of the products of halves, low low
    // is below the rounding of f32. The units cut off what they add up (they do not round), which shows after some hundred
    // steps: so they add up {{ BK }} of k alone, and those sums are added in f32 as everywhere.
    //
    // The power of two is one for all rows of a tile. It brings the largest number of the first step to 2^13, and that of every
    // step which finds more than twice as much. f16 then has 22 bits for what is down to 2^-13 times the largest, and an error
    // of 2^-39 times it for what is smaller: rows a million times smaller than others have 18 bits. So have results below
    // 2^-120, as their scale must be one that f32 can undo.
    var scale_a = 0.0;
    var scale_b = 0.0;
    // Exponents from which on numbers are too large for the scales, as f32 stores them.
    var limits = vec2<u32>();
    // What the units' products must be multiplied with, because both operands are scaled.
    var unscale = 0.0;
    {% macro stage() %}
        {% for name, outer, wide, length, origin, edge in operands %}
        {% set rows = rows_at_once(wide, length) | int %}
        {% for l in range(loads(wide, length) | int) %}
        {
            let x = {{ name }}{{ l }} * scale_{{ name }};
            // Rounded by hand: a compiler may take x - f32(f16(x)) for 0.
            let high = bitcast<vec4<f32>>((bitcast<vec4<u32>>(x) + vec4<u32>(0x1000u)) & vec4<u32>(0xffffe000u));
            let to = {{ name }}_to + {{ l * rows * (stride(wide, length) | int) }}u;
            tile_{{ name }}[to] = vec4<f16>(high);
            low_{{ name }}[to] = vec4<f16>(x - high);
        }
        {% endfor %}
        {% endfor %}
    {% endmacro %}
    // Loads of the next step are under way while the units multiply. What is rare is kept out of the inner loop: drivers unroll
    // it with the rest, and a GPU's instruction caches are small (docs/performance.md).
    {{ declare_loads() }}
    {{ load_tiles("0u") }}
    var step = 0u;
    loop {
        // At the first tiles, and where later ones hold something more than twice as large: rare. Never twice in a step, though
        // infinity exceeds every scale.
        let searched = step;
        {% for name, outer, wide, length, origin, edge in operands %}
        // Of what is finite: infinity must not make zeros of all else.
        var finite_{{ name }} = vec4<u32>();
        {% for l in range(loads(wide, length) | int) %}
        {
            let bits = bitcast<vec4<u32>>(abs({{ name }}{{ l }}));
            finite_{{ name }} = max(finite_{{ name }}, select(vec4<u32>(), bits, bits < vec4<u32>(0x7f800000u)));
        }
        {% endfor %}
        let most_{{ name }} = subgroupMax(max(max(finite_{{ name }}.x, finite_{{ name }}.y), max(finite_{{ name }}.z, finite_{{ name }}.w)));
        {% endfor %}
        if (thread % {{ subgroup }}u == 0u) { largest[unit] = vec4<u32>(most_a, most_b, 0u, 0u); }
        workgroupBarrier();
        var peaks = largest[0];
        {% for s in range(1, subgroups) %}
        peaks = max(peaks, largest[{{ s }}]);
        {% endfor %}
        // Exponents as f32 stores them, 127 more than they are; the scales are made of such as well.
        var exponents = clamp(peaks.xy >> vec2<u32>(23u), vec2<u32>(13u), vec2<u32>(254u));
        exponents.x = max(exponents.x, 154u - min(exponents.y, 154u));
        scale_a = bitcast<f32>((267u - exponents.x) << 23u);
        scale_b = bitcast<f32>((267u - exponents.y) << 23u);
        // Infinity, where products are far beyond f32.
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
            let largest_{{ name }} = max(max(all_{{ name }}.x, all_{{ name }}.y), max(all_{{ name }}.z, all_{{ name }}.w));
            {% endfor %}
            // Whichever threads write this, they write the same.
            if (step != searched && ((largest_a >> 23u) >= limits.x || (largest_b >> 23u) >= limits.y)) { exceeded.x = step; }
            workgroupBarrier();
            if (exceeded.x == step) { break; }
            {{ add_columns() }}
            {
                // The last step's once more, for nothing, instead of a branch.
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
                let at_a{{ i }} = {{ from_a(k, i) }};
                {% for half, tile in [["high", "tile"], ["low", "low"]] %}
                let {{ half }}_a{{ i }} = {{ coop_load_a(tile, "at_a" ~ i) }};
                {% endfor %}
                {% endfor %}
                {% for j in range(fragments_n) %}
                {
                    let at_b = {{ from_b(k, j) }};
                    {% for half, tile in [["high", "tile"], ["low", "low"]] %}
                    let {{ half }}_b = {{ coop_load_b(tile, "at_b") }};
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
