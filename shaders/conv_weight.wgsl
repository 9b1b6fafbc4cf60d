{# Where the weight of the first row and this `k` lies, in the passes forward and input. #}
            {% if pass == "forward" %}
            let at = part * params.m * k_end + k;
            {% elif strided %}
            let tap = k % taps;
            let at = (part * params.channels + k / taps) * params.m * row_of_weight
                + (first_h + tap / taps_w * params.every_h) * params.kernel_w + first_w + tap % taps_w * params.every_w;
            {% else %}
            let at = (part * params.channels + k / row_of_weight) * params.m * row_of_weight + k % row_of_weight;
            {% endif %}
