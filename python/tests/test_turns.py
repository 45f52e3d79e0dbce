"""The numbers that name the collectives of a process group: dp/torch/cxx/turns.h says why. No ranks.

Skips where the backend cannot be compiled.
"""
import random
import sys
import unittest

try:
    from dp.torch import native
    make = native.load().Turns
except (ImportError, native.Unavailable) as reason:
    print(reason)
    sys.exit(77)

LARGE, SMALL = 4 << 20, 4  # bytes


def run(turns, text, nbytes=LARGE):
    """An operation for each letter: their numbers, and whether each is known to be its number's."""
    taken = [turns.next(ord(letter), nbytes) for letter in text]
    return [number for number, _, _ in taken], [is_known for _, is_known, _ in taken]


class Numbers(unittest.TestCase):
    def test_where_nothing_repeats_256_take_turns(self):
        turns, random_ = make(), random.Random(1)
        taken = [turns.next(random_.getrandbits(40), LARGE) for _ in range(1000)]
        self.assertEqual([number for number, _, _ in taken], [i % 256 for i in range(1000)])
        self.assertFalse(any(is_known for _, is_known, _ in taken))
        self.assertEqual([place for _, _, place in taken], list(range(1000)))

    def test_an_operation_of_a_step_has_the_number_it_had_in_the_step_before(self):
        for step in ("abbbbbbbbbbbcdefgh", "abcdefghijklmnop", "a" * 10 + "b" * 10):
            turns = make()
            run(turns, "begin")
            before = [run(turns, step) for _ in range(2)][1]
            for _ in range(5):
                now, is_known = run(turns, step)
                self.assertEqual(len(set(now)), len(step))
                self.assertTrue(all(is_known), step)
                self.assertEqual(now, before[0])

    def test_steps_of_few_operations_have_several_numbers_each(self):
        for nbytes, step, numbers in ((LARGE, "a", 8), (LARGE, "abc", 9), (SMALL, "a", 64), (SMALL, "abc", 66)):
            turns = make()
            run(turns, step * 100, nbytes)
            taken = run(turns, step * (numbers // len(step)), nbytes)[0]
            self.assertEqual(len(set(taken)), numbers)
            self.assertEqual(run(turns, step * (numbers // len(step)), nbytes), (taken, [True] * numbers))

    def test_a_period_within_a_step_gives_way_to_the_step(self):
        for step in ("a" + "bc" * 20 + "de", "aabbcc" * 4 + "d", "ab" + "c" * 30):
            turns = make()
            for _ in range(4):
                run(turns, step)
            before = run(turns, step)[0]
            self.assertEqual(len(set(before)), len(step))
            self.assertEqual(run(turns, step), (before, [True] * len(step)))

    def test_behind_one_more_nothing_is_known_for_a_step(self):
        step = "abcdefghijklmnop"
        turns = make()
        run(turns, step * 4)
        self.assertEqual(run(turns, "x")[1], [False])
        self.assertFalse(any(run(turns, step)[1]))
        run(turns, step)
        before, is_known = run(turns, step)
        self.assertTrue(all(is_known))
        self.assertEqual(run(turns, step), (before, is_known))

    def test_what_no_longer_repeats_has_256_again(self):
        turns, random_ = make(), random.Random(1)
        run(turns, "abcdefghijklmnop" * 4)
        numbers = [turns.next(random_.getrandbits(40), LARGE)[0] for _ in range(600)]
        self.assertEqual(len(set(numbers[-256:])), 256)

    def test_steps_of_500_operations_are_found_and_memory_is_bounded(self):
        step = "".join(map(chr, range(1000, 1500)))
        turns = make()
        run(turns, step * 4)
        before, is_known = run(turns, step)
        self.assertTrue(all(is_known))
        self.assertEqual(run(turns, step)[0], before)
        self.assertLess(max(before), 1024)

    def test_ranks_that_disagreed_about_one_agree_about_the_names_of_the_next(self):
        step = "abcdefghijklmnop"
        for where in range(0, 64, 3):  # before it is known that steps repeat, and after
            here, there = make(), make()
            for turns, operation in ((here, step[where % 16]), (there, "x")):
                run(turns, (step * 4)[:where] + operation)
                turns.forget(where)
            for _ in range(10):
                self.assertEqual(run(here, step), run(there, step))
            self.assertTrue(all(run(here, step)[1]))


if __name__ == "__main__":
    unittest.main()
