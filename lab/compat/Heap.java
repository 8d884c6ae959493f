// SPDX-License-Identifier: Apache-2.0 OR MIT
import java.util.*;

/** A heap of objects, with garbage: the sums are the same each time. */
public class Heap {
    public static void main(String[] arguments) {
        Map<String, long[]> kept = new HashMap<>();
        for (int round = 0; round < 3; round++)
            for (int i = 0; i < 300_000; i++) kept.put("k" + i, new long[] {i, round, i * 2L, 0, 0, 0, 0, 0});
        long sum = 0;
        for (long[] value : kept.values()) sum += value[2];
        System.out.println(sum + " " + kept.size());
        byte[][] blocks = new byte[60][];
        for (int i = 0; i < 60; i++) { blocks[i] = new byte[1 << 20]; Arrays.fill(blocks[i], (byte) i); }
        int all = 0;
        for (byte[] block : blocks) all += block[12345];
        System.out.println(all);
    }
}
