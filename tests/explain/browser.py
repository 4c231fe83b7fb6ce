"""A Chromium for tests of the page: headless, without network, with counted clicks."""

from __future__ import annotations

import shutil
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
)


def program() -> str | None:
    """Path of a Chromium, if one and its driver are installed."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    return browser if shutil.which("chromedriver") else None


class Browser:
    """Opens pages from disk and counts clicks on them."""

    def __init__(self, profile: Path) -> None:
        options = Options()
        options.binary_location = program() or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(
            options=options, service=Service(shutil.which("chromedriver"))
        )
        self.clicks = 0

    def close(self) -> None:
        self.driver.quit()

    def resize(self, width: int, height: int = 900) -> None:
        values = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", values)

    def prefer(self, media: str = "", **features: str) -> None:
        listed = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": listed}
        )

    def scripts(self, *, on: bool) -> None:
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not on})

    def open(self, path: Path, fragment: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(path.as_uri() + (f"#{fragment}" if fragment else ""))
        self.clicks = 0

    def text_without_scripts(self, path: Path) -> str:
        """Return a page's text as a browser shows it that runs no scripts."""
        self.open(path)
        self.scripts(on=False)
        try:
            self.driver.refresh()  # in the process that the setting is for
        finally:
            self.scripts(on=True)  # to read the text
        return self.text("body")

    def click(self, selector: str) -> None:
        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self.clicks += 1

    def press(self, key: str) -> None:
        self.driver.find_element(By.TAG_NAME, "body").send_keys(getattr(Keys, key, key))

    def type(self, key: str) -> None:
        """Press a key where the focus is."""
        self.driver.switch_to.active_element.send_keys(getattr(Keys, key, key))

    def drag(self, selector: str, x: int, y: int) -> None:
        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        ActionChains(self.driver).drag_and_drop_by_offset(element, x, y).perform()

    def downloads_to(self, folder: Path) -> None:
        values = {"behavior": "allow", "downloadPath": str(folder)}
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", values)

    def run_async(self, script: str) -> object:
        self.driver.set_script_timeout(60)
        return self.driver.execute_async_script(script)

    def wait(self, script: str, seconds: float = 10) -> object:
        """Return what a script returns as soon as that is true."""
        return WebDriverWait(self.driver, seconds, 0.02).until(lambda d: d.execute_script(script))

    def text(self, selector: str = "main") -> str:
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def problems(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]
