"""What operators do to their state, event by event and without any index: the model of the driver."""

from forebay.harness.access import DELETE, GET, MERGE, PUT
from forebay.harness.events import END


def accesses(events, name, **settings):
    """All accesses as tuples (operation, family, key, start, end, size, time)."""
    model = {"session": Sessions, "interval": Intervals, "aggregation": Aggregation}.get(name.split("-")[0], Windows)
    model = model(name, **settings)
    watermark = -END
    for row in events.batch().to_pylist():
        model.take(row, watermark)
        if row["watermark"] > watermark:
            watermark = row["watermark"]
            model.expire(watermark, row["arrival"])
    model.expire(END, row["arrival"])
    return model.made


class Aggregation:
    def __init__(self, name):
        self.made = []

    def take(self, row, watermark):
        at = (row["key"], 0, 0)
        self.made += [(GET, 0, *at, 0, row["arrival"]), (PUT, 0, *at, row["size"], row["arrival"])]

    def expire(self, watermark, time):
        pass


class Windows:
    def __init__(self, name, size, slide=None, lateness=0):
        self.made, self.open = [], []  # windows [key, start] in the order in which they were opened
        self.holistic = "incremental" not in name
        self.size, self.slide, self.lateness = size, slide or size, lateness

    def take(self, row, watermark):
        key, time = row["key"], row["time"]
        for start in range(time, time - self.size, -1):
            if start % self.slide or start + self.size + self.lateness <= watermark:
                continue
            if [key, start] not in self.open:
                self.open.append([key, start])
            at = (key, start, start + self.size)
            if self.holistic:
                self.made.append((MERGE, 0, *at, row["size"], row["arrival"]))
            else:
                self.made += [(GET, 0, *at, 0, row["arrival"]), (PUT, 0, *at, row["size"], row["arrival"])]

    def expire(self, watermark, time):
        for key, start in sorted(self.open, key=lambda window: window[1]):
            if start + self.size + self.lateness <= watermark:
                self.open.remove([key, start])
                at = (key, start, start + self.size)
                self.made += [(GET, 0, *at, 0, time), (DELETE, 0, *at, 0, time)]


class Sessions:
    """Those of a key are in a list, newest first: [name, low, high, bytes]."""

    def __init__(self, name, gap, lateness=0):
        self.made, self.open, self.gap, self.lateness = [], {}, gap, lateness
        self.holistic, self.opened = "holistic" in name, 0

    def take(self, row, watermark):
        key, low, high, time = row["key"], row["time"], row["time"] + self.gap, row["arrival"]
        windows = self.open.setdefault(key, [])
        self.made.append((GET, 1, key, 0, 0, 0, time))
        touching = [window for window in windows if window["low"] <= high and low <= window["high"]]
        if not touching:
            if high + self.lateness <= watermark:
                return
            kept = {"name": (key, low, high), "low": low, "high": high, "bytes": 0, "number": self.opened}
            self.opened += 1
            windows.insert(0, kept)
            changed = True
        else:
            kept = min(touching, key=lambda window: window["low"])
            for other in touching:
                if other is not kept:
                    self.made += [(GET, 0, *other["name"], 0, time), (DELETE, 0, *other["name"], 0, time)]
                    self.add(kept, other["bytes"], time)
                    windows.remove(other)
            before = kept["low"], kept["high"]
            kept["low"] = min(low, *(window["low"] for window in touching))
            kept["high"] = max(high, *(window["high"] for window in touching))
            changed = before != (kept["low"], kept["high"])
        self.add(kept, row["size"], time)
        if changed:
            self.remap(key, time)

    def add(self, window, size, time):
        if self.holistic:
            window["bytes"] += size
            self.made.append((MERGE, 0, *window["name"], size, time))
        else:
            window["bytes"] = size
            self.made += [(GET, 0, *window["name"], 0, time), (PUT, 0, *window["name"], size, time)]

    def remap(self, key, time):
        self.made.append((DELETE, 1, key, 0, 0, 0, time))
        self.made += [(MERGE, 1, key, 0, 0, 32, time)] * len(self.open[key])

    def expire(self, watermark, time):
        due = [window for windows in self.open.values() for window in windows if window["high"] + self.lateness <= watermark]
        for window in sorted(due, key=lambda window: (window["high"], window["number"])):
            key = window["name"][0]
            self.made.append((GET, 1, key, 0, 0, 0, time))
            self.made += [(GET, 0, *window["name"], 0, time), (DELETE, 0, *window["name"], 0, time)]
            self.open[key].remove(window)
            self.remap(key, time)
            self.remap(key, time)


class Intervals:
    def __init__(self, name, lower, upper):
        self.made, self.lists, self.keep = [], {}, (max(upper, 0), max(-lower, 0))

    def take(self, row, watermark):
        side, key, time = row["side"], row["key"], row["time"]
        if time + self.keep[side] < watermark:
            return
        self.lists[side, key, time] = self.lists.get((side, key, time), 0) + row["size"]
        at = (side, key, time, time)
        self.made += [(GET, *at, 0, row["arrival"]), (PUT, *at, self.lists[side, key, time], row["arrival"])]

    def expire(self, watermark, now):
        for side, key, time in sorted(self.lists, key=lambda each: each[2] + self.keep[each[0]]):
            if time + self.keep[side] < watermark:
                del self.lists[side, key, time]
                self.made.append((DELETE, side, key, time, time, 0, now))
