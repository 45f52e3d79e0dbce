# b_kernels.sh - every kernel against its twin on the host, and how fast it is.

part_b() {
    part b kernels 120 "Kernels against their host twins"
    step casts 40 "pack, unpack, cast, reduce" --figures casts_figures -- ours "$root/tests/cuda_kernels"
    step attention 40 "attention" --figures attention_figures -- ours "$root/tests/gpt2_attention"
    step gpt2 40 "the trainer's kernels" --says '0 failures' -- ours "$root/tests/gpt2_cuda_kernels_device"
    step products 40 "matrix products by cuBLASLt" --figures products_figures -- \
        ours "$root/tests/gpt2_matmul_device"
    step mma 15 "tensor core instructions" --says '0 failures' -- ours "$root/tests/cuda_mma"
}

# The table's columns: MiB, copy, then a rate and its share of the copy for each kernel. The aim is
# 85 % from 32 MiB up.
casts_figures() {
    awk -v quiet="$rehearsal" '$1 ~ /^[0-9]+$/ && $2 ~ /^[0-9]+$/ && NF >= 12 {
            size = $1; copy = $2; of[1] = $4; of[2] = $6; of[3] = $8; of[4] = $10; of[5] = $12 }
        END { split("pack f32>f16,unpack f16>f32,cast f32>f32,unpack with tally,misaligned", name, ",")
              if (size == "") { if (quiet) print "simulated\t1\t"; exit }
              printf "copy, %d MiB\t%s\tGB/s\n", size, copy
              for (i = 1; i <= 5; i++) { sub(/%/, "", of[i]); printf "%s\t%s\t%% of copy\n", name[i], of[i] } }'
}

attention_figures() {
    awk -v quiet="$rehearsal" '/^bf16 peak/ { seen = 1; printf "bf16 peak\t%s\tTFLOP/s\n", $3 }
        /^\[/ { shape = $0; sub(/\][^\[\]]*$/, "]", shape); gsub(/ /, "", shape)
                rest = $0; sub(/^.*\]/, "", rest); split(rest, column, " ")
                printf "attention %s forward\t%s\tTFLOP/s\nattention %s backward\t%s\tTFLOP/s\n", shape, column[2], shape, column[5] }
        END { if (!seen && quiet) print "simulated\t1\t" }'
}

products_figures() {
    awk -v quiet="$rehearsal" '/ TFLOP\/s$/ { n++; rate = $(NF - 1); sum += rate; if (rate > most) most = rate
                if (least == "" || rate + 0 < least + 0) least = rate }
        END { if (n) printf "products\t%d\t\nslowest product\t%s\tTFLOP/s\nfastest product\t%s\tTFLOP/s\n", n, least, most
              else if (quiet) print "simulated\t1\t" }'
}
